/* What the kernels share: the function type that MindSpore calls, vectors of 8 numbers, threads,
   and the convolution of one image, which lstm.c also uses as its matrix product.

   Why these kernels exist stands in the head of each .c file. Arrays are float32, in C order. */

#ifndef IMPALA_MS_KERNELS_H
#define IMPALA_MS_KERNELS_H

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A function that MindSpore's Custom operator calls (func_type "aot"). data and shapes hold the
   inputs, then the results. It returns 0, or ENOMEM, at which MindSpore raises. */
#define KERNEL(name)                                                                             \
    int name(int count, void **data, int *ranks, int64_t **shapes, const char **types,           \
             void *stream, void *extra)

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define LANES 8                    /* float32 numbers of an AVX2 register */
#define OUTPUT_BLOCK (2 * LANES)   /* outputs are computed 16 at a time */

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Hidden: another library may have functions of the same names. */
#pragma GCC visibility push(hidden)

/* ---- threads.c ---- */

/* The part from ... to of a loop; chunk is its number. Returns 0 or an error. */
typedef int (*loop_body)(const void *arguments, int64_t from, int64_t to, int64_t chunk);

/* Runs body over 0 ... count in chunks of `length`, shared out among the threads. Returns 0, or the
   error of a chunk. */
int parallel_for(int64_t count, int64_t length, loop_body body, const void *arguments);

/* A length for parallel_for: many short chunks, or one chunk for each thread. */
int64_t short_chunk(int64_t count);
int64_t chunk_per_thread(int64_t count);
int thread_count(void);

/* Says on stderr what MindSpore's message lacks, and returns ENOMEM. */
int no_memory(void);

/* ---- conv2d.c ---- */

/* A convolution. Its input is [N, height, width, channels] with planes = 1, or
   [N, planes, height, width] with channels = 1. */
typedef struct {
    int64_t planes, height, width, channels;
    int64_t kernel, stride, padding, input_relu;
    int64_t out_height, out_width, outputs;
    const float *input, *bias, *weights; /* weights in the order of pack_weights */
    const uint8_t *bytes;                /* instead of input: b stands for b * factor + offset */
    float factor, offset;
    float *output, *sums;
} conv2d;

/* Convolves one padded image. Pixels of the output are pixel_step apart, its rows row_step. */
void conv2d_image(const conv2d *v, const float *image, float *output, int64_t pixel_step,
                  int64_t row_step);

/* Weights [O, C, k, k] in the order in which conv2d_image reads them, for the convolution itself
   and for its input gradient. The caller frees them; NULL without memory. */
float *pack_weights(const conv2d *v, const float *weights);
float *pack_rotated_weights(const conv2d *v, const float *weights);

#pragma GCC visibility pop

#endif
