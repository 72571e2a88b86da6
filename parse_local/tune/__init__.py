"""`parse-local tune`: what this machine runs fastest, measured once and used from then on."""
