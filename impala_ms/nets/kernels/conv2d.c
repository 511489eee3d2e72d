/* 2-d convolution, its input gradient and its weight gradient.

   Why: MindSpore gives oneDNN images as [N, C, H, W] (plain order). For these oneDNN only has a
   convolution by way of a matrix product (ONEDNN_VERBOSE=1 prints gemm:jit), which copies each
   pixel into up to k * k windows first: 20 to 40 GFLOP/s a core for 16 or 32 outputs. Here the
   channels of a pixel lie side by side, [N, H, W, C], and nothing is copied: 50 to 80 GFLOP/s a
   core, with bias and ReLU; a matrix product reaches about 75. Images stay bytes until the
   first kernel reads them, a quarter of the memory.

   How: a row of a window is one run of k * C numbers. For a tile of at most 6 pixels and a block of
   16 outputs, the sums stay in registers while (pixel's number) * (weights of 16 outputs) is added
   over all rows and runs. Such direct convolutions: Georganas et al. 2018, arXiv:1808.05567. The
   gradients are those of Dumoulin and Visin 2016, arXiv:1603.07285, chapter 4.

   In: input [N, H, W, C] float32, or images [N, C, H, W] float32 or uint8; weights [O, C, k, k];
   bias [O]; O is a multiple of 16. Out: [N, H', W', O], or gradients in the shapes of the inputs.
   NaN stays NaN, also behind a ReLU, so that the loss shows it. */

#include "kernels.h"

#define MAX_TILE 6 /* 12 sums, 2 weights and 1 pixel fill the 16 registers of AVX2 */

/* Input "settings" of the operators (operators.py), int64 in this order. */
typedef struct {
    int64_t stride;
    int64_t padding;        /* zeros on each side */
    int64_t input_relu;     /* 1: negative numbers of the input count as 0 */
    int64_t channels_first; /* 1: the input is [N, C, H, W] */
} conv2d_settings;

/* Input "scale" of the operators, float32: a uint8 pixel b stands for b * factor + offset. */
typedef struct {
    float factor, offset;
} pixel_scale;

static int64_t image_size(const conv2d *v) {
    return v->planes * v->height * v->width * v->channels;
}
static int64_t padded_height(const conv2d *v) { return v->height + 2 * v->padding; }
static int64_t padded_width(const conv2d *v) { return v->width + 2 * v->padding; }
static int64_t window_size(const conv2d *v) {
    return v->planes * v->kernel * v->kernel * v->channels;
}
static int64_t weight_count(const conv2d *v) { return window_size(v) * v->outputs; }

/* scale may be NULL where the input is float32. */
static conv2d make_conv2d(const void *input, const int64_t *shape, const char *type,
                          const int64_t *weight_shape, const conv2d_settings *settings,
                          const pixel_scale *scale) {
    const int first = settings->channels_first != 0;
    conv2d v = {.kernel = weight_shape[2], .stride = settings->stride,
                .padding = settings->padding, .input_relu = settings->input_relu,
                .outputs = weight_shape[0], .input = input};
    v.planes = first ? shape[1] : 1, v.channels = first ? 1 : shape[3];
    v.height = shape[first ? 2 : 1], v.width = shape[first ? 3 : 2];
    if (!strcmp(type, "uint8"))
        v.input = NULL, v.bytes = input, v.factor = scale->factor, v.offset = scale->offset;
    v.out_height = (padded_height(&v) - v.kernel) / v.stride + 1;
    v.out_width = (padded_width(&v) - v.kernel) / v.stride + 1;
    return v;
}

/* ---- one image ---- */

/* Room for load_image; its border stays 0. */
static float *allocate_image(const conv2d *v) {
    return calloc(v->planes * padded_height(v) * padded_width(v) * v->channels, sizeof(float));
}

/* Image n as padded float32, after the ReLU: in the buffer, or where it is if nothing changes. */
static const float *load_image(const conv2d *v, int64_t n, float *buffer) {
    const int64_t row = v->width * v->channels, padded_row = padded_width(v) * v->channels;
    if (!v->padding && !v->input_relu && !v->bytes) return v->input + n * image_size(v);
    for (int64_t p = 0; p < v->planes; p++)
        for (int64_t i = 0; i < v->height; i++) {
            const int64_t start = n * image_size(v) + (p * v->height + i) * row;
            const int64_t line = p * padded_height(v) + i + v->padding;
            float *to = buffer + line * padded_row + v->padding * v->channels;
            if (v->bytes) {
                const uint8_t *from = v->bytes + start;
                for (int64_t j = 0; j < row; j++) to[j] = from[j] * v->factor + v->offset;
            } else if (v->input_relu) {
                const float *from = v->input + start;
                for (int64_t j = 0; j < row; j++) to[j] = from[j] < 0 ? 0 : from[j];
            } else {
                memcpy(to, v->input + start, row * sizeof(float));
            }
        }
    return buffer;
}

/* Calls TILE(from, length) for parts of 0 ... total, nearly equal and MAX_TILE at most. Lengths are
   constants, so that the compiler unrolls the loops over them. */
#define FOR_TILES(total, TILE)                                                                   \
    for (int64_t at = 0, length; at < (total); at += length) {                                   \
        const int64_t tiles = ((total) - at + MAX_TILE - 1) / MAX_TILE;                          \
        length = ((total) - at + tiles - 1) / tiles;                                             \
        switch (length) {                                                                        \
            case 1: TILE(at, 1); break;                                                          \
            case 2: TILE(at, 2); break;                                                          \
            case 3: TILE(at, 3); break;                                                          \
            case 4: TILE(at, 4); break;                                                          \
            case 5: TILE(at, 5); break;                                                          \
            default: TILE(at, MAX_TILE);                                                         \
        }                                                                                        \
    }

/* A block of 16 outputs for neighbouring pixels. */
ALWAYS_INLINE void conv2d_tile(const conv2d *v, const float *image, const float *weights,
                               const float *bias, float *output, int64_t pixel_step,
                               const int64_t pixels) {
    const int64_t run = v->kernel * v->channels, row = padded_width(v) * v->channels;
    const int64_t plane = padded_height(v) * row, step = v->stride * v->channels;
    vec sums[MAX_TILE][2];
    for (int64_t j = 0; j < pixels; j++)
        for (int i = 0; i < 2; i++) sums[j][i] = bias ? *(vec *)(bias + i * LANES) : (vec){0};
    for (int64_t p = 0; p < v->planes; p++)
        for (int64_t i = 0; i < v->kernel; i++) {
            const float *from = image + p * plane + i * row;
            for (int64_t r = 0; r < run; r++, weights += OUTPUT_BLOCK) {
                const vec first = *(vec *)weights, second = *(vec *)(weights + LANES);
                for (int64_t j = 0; j < pixels; j++) {
                    sums[j][0] += from[j * step + r] * first;
                    sums[j][1] += from[j * step + r] * second;
                }
            }
        }
    for (int64_t j = 0; j < pixels; j++)
        for (int i = 0; i < 2; i++) *(vec *)(output + j * pixel_step + i * LANES) = sums[j][i];
}

void conv2d_image(const conv2d *v, const float *image, float *output, int64_t pixel_step,
                  int64_t row_step) {
    const int64_t row = v->stride * padded_width(v) * v->channels, step = v->stride * v->channels;
    for (int64_t i = 0; i < v->out_height; i++)
        for (int64_t o = 0; o < v->outputs; o += OUTPUT_BLOCK) {
            const float *from = image + i * row, *weights = v->weights + window_size(v) * o;
            const float *bias = v->bias ? v->bias + o : NULL;
            float *to = output + i * row_step + o;
#define TILE(j, pixels)                                                                          \
    conv2d_tile(v, from + (j) * step, weights, bias, to + (j) * pixel_step, pixel_step, pixels)
            FOR_TILES(v->out_width, TILE)
#undef TILE
        }
}

/* ---- forward ---- */

/* Index in weights [O, C, k, k], for one output, of number i of a window of the input. */
static int64_t weight_index(const conv2d *v, int64_t i) {
    return v->channels == 1 ? i : i % v->channels * v->kernel * v->kernel + i / v->channels;
}

float *pack_weights(const conv2d *v, const float *weights) {
    const int64_t window = window_size(v);
    float *packed = malloc(weight_count(v) * sizeof(float)), *to = packed;
    if (!packed) return NULL;
    for (int64_t o = 0; o < v->outputs; o += OUTPUT_BLOCK)
        for (int64_t i = 0; i < window; i++)
            for (int64_t q = o; q < o + OUTPUT_BLOCK; q++)
                *to++ = weights[q * window + weight_index(v, i)];
    return packed;
}

static int forward_images(const void *arguments, int64_t from, int64_t to, int64_t chunk) {
    const conv2d *v = arguments;
    const int64_t row = v->out_width * v->outputs;
    float *buffer = allocate_image(v);
    if (!buffer) return no_memory();
    for (int64_t n = from; n < to; n++) {
        const float *image = load_image(v, n, buffer);
        conv2d_image(v, image, v->output + n * v->out_height * row, v->outputs, row);
    }
    free(buffer);
    return 0;
}

/* input, weights, bias, settings, scale -> output [N, H', W', O] */
KERNEL(conv2d_forward) {
    conv2d v = make_conv2d(data[0], shapes[0], types[0], shapes[1], data[3], data[4]);
    float *weights = pack_weights(&v, data[1]);
    if (!weights) return no_memory();
    v.weights = weights, v.bias = data[2], v.output = data[5];
    const int error = parallel_for(shapes[0][0], short_chunk(shapes[0][0]), forward_images, &v);
    free(weights);
    return error;
}

/* ---- input gradient ---- */

typedef struct {
    conv2d forward;           /* its output is the input gradient */
    const float *d_output;    /* [N, H', W', O] */
    const float *weights;     /* of pack_rotated_weights */
} input_gradient;

/* Input pixels whose row and column have the same remainders by the stride form an image of their
   own. Its gradient is a convolution of the output gradient with every stride-th weight, rotated
   by 180 degrees. */
static int backward_input_images(const void *arguments, int64_t from, int64_t to, int64_t chunk) {
    const input_gradient *g = arguments;
    const conv2d *f = &g->forward;
    const int64_t s = f->stride, taps = f->kernel / s;
    conv2d v = {.planes = 1, .height = f->out_height, .width = f->out_width,
                .channels = f->outputs, .kernel = taps, .stride = 1,
                .padding = taps - 1 - f->padding, .outputs = f->channels, .input = g->d_output};
    float *buffer = allocate_image(&v);
    if (!buffer) return no_memory();
    for (int64_t n = from; n < to; n++) {
        const float *d_output = load_image(&v, n, buffer);
        const float *input = f->input + n * image_size(f);
        float *d_input = f->output + n * image_size(f);
        if (s > 1) memset(d_input, 0, image_size(f) * sizeof(float)); /* edges without a window */
        v.weights = g->weights;
        for (int64_t a = 0; a < s; a++)
            for (int64_t b = 0; b < s; b++, v.weights += weight_count(&v)) {
                const int64_t rows = (f->height - a + s - 1) / s;
                const int64_t columns = (f->width - b + s - 1) / s;
                v.out_height = padded_height(&v) - taps + 1;
                v.out_width = padded_width(&v) - taps + 1;
                v.out_height = v.out_height < rows ? v.out_height : rows;
                v.out_width = v.out_width < columns ? v.out_width : columns;
                conv2d_image(&v, d_output, d_input + (a * f->width + b) * f->channels,
                             s * f->channels, s * f->width * f->channels);
            }
        if (f->input_relu)
            for (int64_t j = 0; j < image_size(f); j++) d_input[j] = input[j] > 0 ? d_input[j] : 0;
    }
    free(buffer);
    return 0;
}

float *pack_rotated_weights(const conv2d *v, const float *weights) {
    const int64_t k = v->kernel, s = v->stride, channels = v->channels;
    float *packed = malloc(weight_count(v) * sizeof(float)), *to = packed;
    if (!packed) return NULL;
    for (int64_t a = 0; a < s; a++)
        for (int64_t b = 0; b < s; b++)
            for (int64_t c = 0; c < channels; c += OUTPUT_BLOCK)
                for (int64_t i = k - s + a; i >= 0; i -= s)
                    for (int64_t j = k - s + b; j >= 0; j -= s)
                        for (int64_t o = 0; o < v->outputs; o++)
                            for (int64_t q = c; q < c + OUTPUT_BLOCK; q++)
                                *to++ = weights[((o * channels + q) * k + i) * k + j];
    return packed;
}

/* output gradient, weights, input [N, H, W, C], settings -> input gradient; C is a multiple of 16;
   a stride above 1 divides the kernel, and then the padding is 0 */
KERNEL(conv2d_backward_input) {
    conv2d v = make_conv2d(data[2], shapes[2], types[2], shapes[1], data[3], NULL);
    float *weights = pack_rotated_weights(&v, data[1]);
    if (!weights) return no_memory();
    v.output = data[4];
    const input_gradient g = {v, data[0], weights};
    const int64_t images = shapes[0][0];
    const int error = parallel_for(images, short_chunk(images), backward_input_images, &g);
    free(weights);
    return error;
}

/* ---- weight gradient ---- */

/* Adds to `length` rows of sums: neighbouring numbers of the input times the gradients of a block
   of 16 outputs, over the windows of a row of the image. */
ALWAYS_INLINE void add_outer_products(const conv2d *v, const float *image, const float *d_output,
                                      float *sums, const int64_t length) {
    const int64_t step = v->stride * v->channels, outputs = v->outputs;
    vec s[MAX_TILE][2];
    for (int64_t r = 0; r < length; r++)
        for (int i = 0; i < 2; i++) s[r][i] = *(vec *)(sums + r * outputs + i * LANES);
    for (int64_t j = 0; j < v->out_width; j++, image += step, d_output += outputs) {
        const vec first = *(vec *)d_output, second = *(vec *)(d_output + LANES);
        for (int64_t r = 0; r < length; r++) {
            s[r][0] += image[r] * first;
            s[r][1] += image[r] * second;
        }
    }
    for (int64_t r = 0; r < length; r++)
        for (int i = 0; i < 2; i++) *(vec *)(sums + r * outputs + i * LANES) = s[r][i];
}

/* Each chunk has sums of its own. */
static int backward_weight_images(const void *arguments, int64_t from, int64_t to, int64_t chunk) {
    const conv2d *v = arguments;
    const int64_t row = padded_width(v) * v->channels, run = v->kernel * v->channels;
    float *sums = v->sums + chunk * (weight_count(v) + v->outputs);
    float *bias_sums = sums + weight_count(v), *buffer = allocate_image(v);
    if (!buffer) return no_memory();
    for (int64_t n = from; n < to; n++) {
        const float *image = load_image(v, n, buffer);
        for (int64_t i = 0; i < v->out_height; i++) {
            const float *d_output = v->output + (n * v->out_height + i) * v->out_width * v->outputs;
            for (int64_t o = 0; o < v->outputs; o += OUTPUT_BLOCK)
                for (int64_t q = 0; q < v->planes * v->kernel; q++) {
                    const int64_t first_line = q / v->kernel * padded_height(v) + i * v->stride;
                    const float *line = image + (first_line + q % v->kernel) * row;
                    float *to = sums + q * run * v->outputs + o;
#define TILE(r, length)                                                                          \
    add_outer_products(v, line + (r), d_output + o, to + (r) * v->outputs, length)
                    FOR_TILES(run, TILE)
#undef TILE
                }
            for (int64_t j = 0; j < v->out_width; j++)
                for (int64_t o = 0; o < v->outputs; o++)
                    bias_sums[o] += d_output[j * v->outputs + o];
        }
    }
    free(buffer);
    return 0;
}

/* output gradient, input, settings, scale -> weight gradient [O, C, k, k], bias gradient [O] */
KERNEL(conv2d_backward_weight) {
    conv2d v = make_conv2d(data[1], shapes[1], types[1], shapes[4], data[2], data[3]);
    const int64_t window = window_size(&v), size = weight_count(&v) + v.outputs;
    const int64_t images = shapes[0][0], threads = thread_count();
    float *d_weights = data[4];
    v.output = data[0], v.sums = calloc(threads * size, sizeof(float));
    if (!v.sums) return no_memory();
    const int error = parallel_for(images, chunk_per_thread(images), backward_weight_images, &v);
    for (int64_t t = 1; t < threads; t++)
        for (int64_t i = 0; i < size; i++) v.sums[i] += v.sums[t * size + i];
    for (int64_t i = 0; i < window; i++)
        for (int64_t o = 0; o < v.outputs; o++)
            d_weights[o * window + weight_index(&v, i)] = v.sums[i * v.outputs + o];
    memcpy(data[5], v.sums + weight_count(&v), v.outputs * sizeof(float));
    free(v.sums);
    return error;
}
