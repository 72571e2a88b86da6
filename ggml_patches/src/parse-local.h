// C ABI of libparse_local: what parse-local needs of output rows without carrying them through Python.
//
// The library is not linked to llama.cpp. It reads plain arrays of logits, as returned by
// llama_get_logits(), and what it calls of llama.cpp is handed over as pointers to functions, so
// that it works with any library of the version whose llama.h it was compiled with.
// No function throws. All are thread-safe; those that take a context or a sampler, as far as
// llama.cpp is.

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

struct llama_batch;
struct llama_context;
struct llama_sampler;
struct llama_token_data;
struct llama_token_data_array;

// Return codes of the functions below; on an error no output has been written
#define PARSE_LOCAL_OK                 0
#define PARSE_LOCAL_INVALID_ARGUMENT (-1) // a negative count, n_vocab < 1, or a pointer that is missing
#define PARSE_LOCAL_INVALID_TOKEN    (-2) // a token or label that is not below n_vocab
#define PARSE_LOCAL_NO_DISTRIBUTION  (-3) // the row has none, see below
#define PARSE_LOCAL_EXCEPTION      (-100) // llama.cpp threw an exception, or there is no memory left

// A row has a distribution if its largest logit is finite and none is NaN; single logits may be
// -INFINITY (probability 0). Where it has none, there is nothing to choose or to compare.

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
// A row that has no distribution: argmax and rank -1, log-probabilities and entropy NaN.
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
//   out    : [n_rows][n_labels], row-major; NaN where a row has no distribution
// Returns 0 or one of the codes above
PARSE_LOCAL_API int32_t parse_local_label_logprobs(
        const float   * logits,
              int32_t   n_rows,
              int32_t   n_vocab,
        const int32_t * labels,
              int32_t   n_labels,
              int32_t   n_threads,
              float   * out);

// The functions of llama.cpp that are called below, each under its name in llama.h
typedef struct parse_local_llama {
    int32_t (*decode)        (struct llama_context * ctx, struct llama_batch batch);
    float * (*get_logits_ith)(struct llama_context * ctx, int32_t i);
    void    (*sampler_reset) (struct llama_sampler * smpl);
    void    (*sampler_accept)(struct llama_sampler * smpl, int32_t token);
    void    (*sampler_apply) (struct llama_sampler * smpl, struct llama_token_data_array * cur_p);
} parse_local_llama;

// Decode one token of sequence 0 and take the arg-max of its output row
//   pos    : position of the token
//   argmax : the token with the largest logit, the lowest id of several; -1 where the row has no
//            distribution; may be NULL
// Returns what llama_decode() returns (0 on success; the state of the memory is as it says), or
// PARSE_LOCAL_EXCEPTION; the row is llama_get_logits_ith(ctx, -1)
PARSE_LOCAL_API int32_t parse_local_decode_token(
        const parse_local_llama    * llama,
              struct llama_context * ctx,
              int32_t                token,
              int32_t                pos,
              int32_t                n_vocab,
              int32_t              * argmax);

// What a chain of samplers leaves of one row
//   logits       : [n_vocab]
//   smpl         : the chain
//   n_keep       : how many of the best tokens, after penalties, matter: k if the chain has a top-k
//                  and nothing but penalties before it, 1 if only the best is wanted, 0 for all.
//                  Only tokens that can be among them are handed to the chain, which changes
//                  nothing but which of several equal logits are the last ones
//   history      : [n_history], the tokens that penalties may change, oldest first: the chain is
//                  reset and accepts them before it is applied; NULL if it has no penalties
//   candidates   : [n_candidates], work space
//   n_candidates : at least min(n_vocab, 2*(n_keep + n_history)), or n_vocab if n_keep is 0
// Outputs, n_candidates each
//   ids          : the tokens that are left, in the order in which the chain leaves them
//   probs        : their probabilities, which sum to 1
// Returns how many are left, or one of the codes above
PARSE_LOCAL_API int32_t parse_local_sample_row(
        const parse_local_llama       * llama,
        const float                   * logits,
              int32_t                   n_vocab,
              struct llama_sampler    * smpl,
              int32_t                   n_keep,
        const int32_t                 * history,
              int32_t                   n_history,
              struct llama_token_data * candidates,
              int32_t                   n_candidates,
              int32_t                 * ids,
              double                  * probs);

// A ggml_abort_callback: true once the int32_t at flag is not 0
// Given to llama_set_abort_callback(), it stops a computation without a call into Python
PARSE_LOCAL_API bool parse_local_abort_requested(void * flag);

#ifdef __cplusplus
}
#endif

#endif // PARSE_LOCAL_H
