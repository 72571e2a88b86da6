// C ABI of libparse_local: what parse-local needs of output rows without carrying them through Python.
//
// The library does not depend on llama.cpp; it reads plain arrays of logits, as returned by
// llama_get_logits(). All functions are thread-safe and none of them throws.

#ifndef PARSE_LOCAL_H
#define PARSE_LOCAL_H

#include <stdbool.h>
#include <stdint.h>

#if defined(_WIN32)
#    ifdef PARSE_LOCAL_BUILD
#        define PARSE_LOCAL_API __declspec(dllexport)
#    else
#        define PARSE_LOCAL_API __declspec(dllimport)
#    endif
#else
#    define PARSE_LOCAL_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Return codes of the functions below; on an error no output has been written
#define PARSE_LOCAL_OK                 0
#define PARSE_LOCAL_INVALID_ARGUMENT (-1) // a negative count, n_vocab < 1, or a pointer that is missing
#define PARSE_LOCAL_INVALID_TOKEN    (-2) // a token or label that is not below n_vocab

// Version of these functions, to be shown to a person
PARSE_LOCAL_API const char * parse_local_shim_version(void);

// Score rows of logits
//   logits      : [n_rows][n_vocab], row-major
//   tokens      : [n_rows], the token to look up in each row, -1 for none; may be NULL if neither
//                 logprob nor rank is wanted
//   n_threads   : number of threads, the calling one included; below 1 counts as 1
// Outputs, [n_rows] each; what is NULL is not computed
//   argmax      : the token with the largest logit, the lowest id of several
//   logprob     : log-probability (nats) of the token, NaN where there is none
//   rank        : number of tokens with a strictly larger logit, -1 where there is no token
//   entropy     : entropy of the distribution (nats)
//   max_logprob : log-probability (nats) of the argmax
// Logits may be -INFINITY (probability 0), but not NaN. A row in which all of them are has no
// distribution: its log-probabilities and its entropy are NaN.
// Results agree with a computation in double precision within 1e-5.
// Returns 0 or one of the codes above
PARSE_LOCAL_API int32_t parse_local_score_rows(
        const float   * logits,
              int32_t   n_rows,
              int32_t   n_vocab,
        const int32_t * tokens,
              int32_t   n_threads,
              int32_t * argmax,
              float   * logprob,
              int32_t * rank,
              float   * entropy,
              float   * max_logprob);

// Log-probabilities (nats) of the same few tokens in every row
//   labels : [n_labels]
//   out    : [n_rows][n_labels], row-major
// Returns 0 or one of the codes above
PARSE_LOCAL_API int32_t parse_local_label_logprobs(
        const float   * logits,
              int32_t   n_rows,
              int32_t   n_vocab,
        const int32_t * labels,
              int32_t   n_labels,
              int32_t   n_threads,
              float   * out);

// A ggml_abort_callback: true once the int32_t at flag is not 0
// Given to llama_set_abort_callback(), it stops a computation without a call into Python
PARSE_LOCAL_API bool parse_local_abort_requested(void * flag);

#ifdef __cplusplus
}
#endif

#endif // PARSE_LOCAL_H
