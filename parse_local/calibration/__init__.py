"""Calibration: from answers whose correctness is known to a profile that carries a guarantee."""
