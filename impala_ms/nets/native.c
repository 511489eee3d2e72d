/* Convolutions, pooling and an LSTM on the CPU, as MindSpore's custom operators (native.py).

   Images are [N, H, W, C] float32. A row of a window is then one run of k * C numbers, and a
   convolution is, for some pixels at once, the sum over rows and runs of x * (the weights of 16
   outputs): TILE pixels and 2 vectors of 8 outputs stay in registers meanwhile.
   Images may also come as planes, [N, C, H, W]: then there are C images of one channel to sum over.

   Each exported function has the signature that MindSpore asks for. It returns 0; or, without
   memory, ENOMEM, at which MindSpore raises. */

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API(name)                                                                                \
    int name(int count, void **data, int *ranks, int64_t **shapes, const char **types,           \
             void *stream, void *extra)
#define MOST_THREADS 64
#define LANES 8
#define OUTPUTS (2 * LANES)
#define TILE 6 /* 12 sums, 2 weights and 1 pixel fill the 16 registers of AVX2 */
#define ALWAYS static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static int threads = 1;

void set_threads(int number) {
    threads = number < 1 ? 1 : number > MOST_THREADS ? MOST_THREADS : number;
}

/* MindSpore's message has only the number */
static int no_memory(void) {
    fputs("impala_ms: the kernels of native.c want more memory than there is\n", stderr);
    return ENOMEM;
}

/* ---- images in pieces, shared out among threads ---- */

typedef int (*work_on)(const void *call, int64_t from, int64_t to, int64_t piece);
typedef struct {
    work_on work;
    const void *call;
    int64_t images, length; /* of a piece */
    _Atomic int64_t next;
    _Atomic int failure; /* of a piece, or 0 */
} job;

static void *do_pieces(void *given) {
    job *j = given;
    for (int64_t piece; (piece = j->next++) * j->length < j->images;) {
        const int64_t from = piece * j->length, to = from + j->length;
        const int failure = j->work(j->call, from, to < j->images ? to : j->images, piece);
        if (failure) j->failure = failure;
    }
    return NULL;
}

/* A thread takes a piece as soon as it has ended one: MindSpore's own threads, which wait spinning,
   slow some of them down. Where a thread cannot be started, the others take its pieces. */
static int each(int64_t images, int64_t length, work_on work, const void *call) {
    job j = {work, call, images, length, 0, 0};
    pthread_t started[MOST_THREADS];
    int number = 0;
    while (number + 1 < threads && (number + 1) * length < images &&
           !pthread_create(&started[number], NULL, do_pieces, &j))
        number++;
    do_pieces(&j);
    while (number > 0) pthread_join(started[--number], NULL);
    return j.failure;
}

/* short enough that no thread waits for long, long enough that the sharing costs nothing */
static int64_t piece_of(int64_t images) { return images / (8 * threads) + 1; }

/* one piece for each thread, whoever takes it: sums over pieces always have the same order */
static int64_t share_of(int64_t images) { return (images + threads - 1) / threads; }

/* ---- convolution ---- */

typedef struct {
    int64_t planes, h, w, c; /* of an image of x; planes are 1, or c is */
    int64_t k, stride, padding, relu;
    int64_t out_h, out_w, out;
    const float *x, *bias, *weights; /* 16 outputs of all weights, the next 16, ... */
    const uint8_t *bytes;            /* in place of x, and what numbers they stand for: */
    float factor, offset;
    float *y, *sums;
} conv;

static int64_t size_of(const conv *v) { return v->planes * v->h * v->w * v->c; }
static int64_t padded_h(const conv *v) { return v->h + 2 * v->padding; }
static int64_t padded_w(const conv *v) { return v->w + 2 * v->padding; }
static int64_t weights_of(const conv *v) { return v->planes * v->k * v->k * v->c * v->out; }

/* how: [stride, padding, relu of x first, x as planes, factor and offset of x if it is bytes].
   An operator takes tensors only, so that one of floats has them all: in it small integers are
   exact. */
static conv describe(const void *x, const int64_t *shape, const char *type, const float *how,
                     int64_t k, int64_t out) {
    const int planes = how[3] != 0;
    conv v = {.k = k, .stride = how[0], .padding = how[1], .relu = how[2], .out = out, .x = x};
    v.planes = planes ? shape[1] : 1;
    v.h = shape[planes ? 2 : 1], v.w = shape[planes ? 3 : 2], v.c = planes ? 1 : shape[3];
    if (!strcmp(type, "uint8")) v.x = NULL, v.bytes = x, v.factor = how[4], v.offset = how[5];
    v.out_h = (padded_h(&v) - k) / v.stride + 1;
    v.out_w = (padded_w(&v) - k) / v.stride + 1;
    return v;
}

static float *room_for(const conv *v) {
    return calloc(v->planes * padded_h(v) * padded_w(v) * v->c, sizeof(float));
}

/* image n of x as float, or its relu, inside a border of zeros that room has already; NaN stays NaN
   here and in max_pool, so that a loss shows it */
static const float *padded(const conv *v, int64_t n, float *room) {
    const int64_t row = v->w * v->c, wide = padded_w(v) * v->c;
    if (!v->padding && !v->relu && !v->bytes) return v->x + n * size_of(v);
    for (int64_t p = 0; p < v->planes; p++)
        for (int64_t i = 0; i < v->h; i++) {
            const int64_t start = n * size_of(v) + (p * v->h + i) * row;
            float *to = room + (p * padded_h(v) + i + v->padding) * wide + v->padding * v->c;
            if (v->bytes) {
                const uint8_t *from = v->bytes + start;
                for (int64_t j = 0; j < row; j++) to[j] = from[j] * v->factor + v->offset;
            } else if (v->relu) {
                const float *from = v->x + start;
                for (int64_t j = 0; j < row; j++) to[j] = from[j] < 0 ? 0 : from[j];
            } else {
                memcpy(to, v->x + start, row * sizeof(float));
            }
        }
    return room;
}

/* Call ROUND(from, length) for pieces of 0 ... total, of equal length but for 1 and TILE at most;
   the lengths are constants, so that the compiler unrolls the loops over them. */
#define IN_PIECES(total, ROUND)                                                                  \
    for (int64_t at = 0, length; at < (total); at += length) {                                   \
        const int64_t pieces = ((total) - at + TILE - 1) / TILE;                                 \
        length = ((total) - at + pieces - 1) / pieces;                                           \
        switch (length) {                                                                        \
            case 1: ROUND(at, 1); break;                                                         \
            case 2: ROUND(at, 2); break;                                                         \
            case 3: ROUND(at, 3); break;                                                         \
            case 4: ROUND(at, 4); break;                                                         \
            case 5: ROUND(at, 5); break;                                                         \
            default: ROUND(at, TILE);                                                            \
        }                                                                                        \
    }

/* 16 outputs of `pixels` neighbours */
ALWAYS void tile(const conv *v, const float *x, const float *w, const float *bias, float *y,
                 int64_t y_step, const int64_t pixels) {
    const int64_t run = v->k * v->c, row = padded_w(v) * v->c, step = v->stride * v->c;
    const int64_t plane = padded_h(v) * row;
    vec sums[TILE][2];
    for (int64_t j = 0; j < pixels; j++)
        for (int i = 0; i < 2; i++) sums[j][i] = bias ? *(vec *)(bias + i * LANES) : (vec){0};
    for (int64_t p = 0; p < v->planes; p++)
        for (int64_t i = 0; i < v->k; i++) {
            const float *from = x + p * plane + i * row;
            for (int64_t r = 0; r < run; r++, w += OUTPUTS) {
                const vec first = *(vec *)w, second = *(vec *)(w + LANES);
                for (int64_t j = 0; j < pixels; j++) {
                    sums[j][0] += from[j * step + r] * first;
                    sums[j][1] += from[j * step + r] * second;
                }
            }
        }
    for (int64_t j = 0; j < pixels; j++)
        for (int i = 0; i < 2; i++) *(vec *)(y + j * y_step + i * LANES) = sums[j][i];
}

/* one padded image; pixels of y are y_step apart, rows y_row */
static void conv2d_image(const conv *v, const float *image, float *y, int64_t y_step,
                         int64_t y_row) {
    const int64_t row = v->stride * padded_w(v) * v->c, step = v->stride * v->c;
    for (int64_t i = 0; i < v->out_h; i++)
        for (int64_t o = 0; o < v->out; o += OUTPUTS) {
            const float *x = image + i * row, *w = v->weights + weights_of(v) / v->out * o;
            const float *bias = v->bias ? v->bias + o : NULL;
            float *to = y + i * y_row + o;
#define ROUND(j, pixels) tile(v, x + (j) * step, w, bias, to + (j) * y_step, y_step, pixels)
            IN_PIECES(v->out_w, ROUND)
#undef ROUND
        }
}

static int conv2d_images(const void *call, int64_t from, int64_t to, int64_t piece) {
    const conv *v = call;
    const int64_t row = v->out_w * v->out;
    float *room = room_for(v);
    if (!room) return no_memory();
    for (int64_t n = from; n < to; n++)
        conv2d_image(v, padded(v, n, room), v->y + n * v->out_h * row, v->out, row);
    free(room);
    return 0;
}

/* place among the weights [O, C, k, k] of what is number i of a window of x */
static int64_t place(const conv *v, int64_t i) {
    return v->c == 1 ? i : i % v->c * v->k * v->k + i / v->c;
}

/* weights [O, C, k, k] in the order in which tile reads them; NULL without memory */
static float *packed(const conv *v, const float *weights) {
    const int64_t window = weights_of(v) / v->out;
    float *result = malloc(weights_of(v) * sizeof(float)), *to = result;
    if (!result) return NULL;
    for (int64_t o = 0; o < v->out; o += OUTPUTS)
        for (int64_t i = 0; i < window; i++)
            for (int64_t q = o; q < o + OUTPUTS; q++) *to++ = weights[q * window + place(v, i)];
    return result;
}

/* x, weights [O, C, k, k], bias [O], how -> y [N, H', W', O]; O is 16, 32, ... */
API(conv2d) {
    conv v = describe(data[0], shapes[0], types[0], data[3], shapes[1][2], shapes[1][0]);
    float *weights = packed(&v, data[1]);
    if (!weights) return no_memory();
    v.weights = weights, v.bias = data[2], v.y = data[4];
    const int failure = each(shapes[0][0], piece_of(shapes[0][0]), conv2d_images, &v);
    free(weights);
    return failure;
}

typedef struct {
    conv forward; /* x is the one of the convolution, y the gradient of x */
    const float *gradient, *turned;
} turned_conv;

/* Pixels of x whose places have the same remainder by the stride make an image of their own. Its
   gradient is a convolution of the gradient of y with every stride-th of the turned weights. */
static int backward_input_images(const void *call, int64_t from, int64_t to, int64_t piece) {
    const turned_conv *t = call;
    const conv *f = &t->forward;
    const int64_t s = f->stride, taps = f->k / s;
    conv v = {.planes = 1, .h = f->out_h, .w = f->out_w, .c = f->out, .k = taps, .stride = 1,
              .padding = taps - 1 - f->padding, .out = f->c, .x = t->gradient};
    float *room = room_for(&v);
    if (!room) return no_memory();
    for (int64_t n = from; n < to; n++) {
        const float *image = padded(&v, n, room);
        const float *x = f->x + n * size_of(f);
        float *y = f->y + n * size_of(f);
        if (s > 1) memset(y, 0, size_of(f) * sizeof(float)); /* no window covers the last ones */
        v.weights = t->turned;
        for (int64_t a = 0; a < s; a++)
            for (int64_t b = 0; b < s; b++, v.weights += weights_of(&v)) {
                const int64_t rows = (f->h - a + s - 1) / s, columns = (f->w - b + s - 1) / s;
                v.out_h = padded_h(&v) - taps + 1, v.out_w = padded_w(&v) - taps + 1;
                v.out_h = v.out_h < rows ? v.out_h : rows;
                v.out_w = v.out_w < columns ? v.out_w : columns;
                conv2d_image(&v, image, y + (a * f->w + b) * f->c, s * f->c, s * f->w * f->c);
            }
        if (f->relu)
            for (int64_t j = 0; j < size_of(f); j++) y[j] = x[j] > 0 ? y[j] : 0;
    }
    free(room);
    return 0;
}

/* the same for each of these images: every stride-th of the weights, turned, from y to x; NULL
   without memory */
static float *turned(const conv *v, const float *weights) {
    const int64_t k = v->k, s = v->stride, c = v->c, out = v->out;
    float *result = malloc(weights_of(v) * sizeof(float)), *to = result;
    if (!result) return NULL;
    for (int64_t a = 0; a < s; a++)
        for (int64_t b = 0; b < s; b++)
            for (int64_t p = 0; p < c; p += OUTPUTS)
                for (int64_t i = k - s + a; i >= 0; i -= s)
                    for (int64_t j = k - s + b; j >= 0; j -= s)
                        for (int64_t o = 0; o < out; o++)
                            for (int64_t q = p; q < p + OUTPUTS; q++)
                                *to++ = weights[((o * c + q) * k + i) * k + j];
    return result;
}

/* gradient of y, weights, x, how -> gradient of x [N, H, W, C]; C is 16, 32, ...; the stride is 1,
   or divides the kernel and nothing is padded */
API(conv2d_backward_input) {
    conv v = describe(data[2], shapes[2], types[2], data[3], shapes[1][2], shapes[1][0]);
    float *weights = turned(&v, data[1]);
    if (!weights) return no_memory();
    v.y = data[4];
    turned_conv call = {v, data[0], weights};
    const int failure = each(shapes[0][0], piece_of(shapes[0][0]), backward_input_images, &call);
    free(weights);
    return failure;
}

/* sums over the windows of a row: of `length` neighbours in x times 16 outputs' gradients */
ALWAYS void outer(const conv *v, const float *x, const float *gradient, float *sums,
                  const int64_t length) {
    const int64_t step = v->stride * v->c, out = v->out;
    vec s[TILE][2];
    for (int64_t r = 0; r < length; r++)
        for (int i = 0; i < 2; i++) s[r][i] = *(vec *)(sums + r * out + i * LANES);
    for (int64_t j = 0; j < v->out_w; j++, x += step, gradient += out) {
        const vec first = *(vec *)gradient, second = *(vec *)(gradient + LANES);
        for (int64_t r = 0; r < length; r++) {
            s[r][0] += x[r] * first;
            s[r][1] += x[r] * second;
        }
    }
    for (int64_t r = 0; r < length; r++)
        for (int i = 0; i < 2; i++) *(vec *)(sums + r * out + i * LANES) = s[r][i];
}

static int backward_weight_images(const void *call, int64_t from, int64_t to, int64_t piece) {
    const conv *v = call;
    const int64_t row = padded_w(v) * v->c, run = v->k * v->c;
    float *room = room_for(v), *sums = v->sums + piece * (weights_of(v) + v->out);
    float *bias_sums = sums + weights_of(v);
    if (!room) return no_memory();
    for (int64_t n = from; n < to; n++) {
        const float *image = padded(v, n, room);
        for (int64_t i = 0; i < v->out_h; i++) {
            const float *gradient = v->y + (n * v->out_h + i) * v->out_w * v->out;
            for (int64_t o = 0; o < v->out; o += OUTPUTS)
                for (int64_t q = 0; q < v->planes * v->k; q++) {
                    const int64_t line = q / v->k * padded_h(v) + i * v->stride + q % v->k;
                    const float *x = image + line * row;
                    float *to = sums + q * run * v->out + o;
#define ROUND(r, length) outer(v, x + (r), gradient + o, to + (r) * v->out, length)
                    IN_PIECES(run, ROUND)
#undef ROUND
                }
            for (int64_t j = 0; j < v->out_w; j++)
                for (int64_t o = 0; o < v->out; o++) bias_sums[o] += gradient[j * v->out + o];
        }
    }
    free(room);
    return 0;
}

/* gradient of y, x, how -> gradients of the weights and the bias */
API(conv2d_backward_weight) {
    conv v = describe(data[1], shapes[1], types[1], data[2], shapes[3][2], shapes[3][0]);
    const int64_t window = weights_of(&v) / v.out, size = weights_of(&v) + v.out;
    float *by_weights = data[3];
    v.y = data[0], v.sums = calloc(threads * size, sizeof(float));
    if (!v.sums) return no_memory();
    const int failure = each(shapes[0][0], share_of(shapes[0][0]), backward_weight_images, &v);
    for (int64_t t = 1; t < threads; t++)
        for (int64_t i = 0; i < size; i++) v.sums[i] += v.sums[t * size + i];
    for (int64_t i = 0; i < window; i++)
        for (int64_t o = 0; o < v.out; o++)
            by_weights[o * window + place(&v, i)] = v.sums[i * v.out + o];
    memcpy(data[4], v.sums + weights_of(&v), v.out * sizeof(float));
    free(v.sums);
    return failure;
}

/* ---- the maximum of 3x3 pixels at every second place, padded as TensorFlow's SAME ---- */

typedef struct {
    int64_t h, w, c, out_h, out_w;
    const float *x, *y, *gradient;
    float *result;
} pooling;

static pooling describe_pooling(const int64_t *x) {
    return (pooling){
        .h = x[1], .w = x[2], .c = x[3], .out_h = (x[1] + 1) / 2, .out_w = (x[2] + 1) / 2};
}

/* pixels of window i along an axis of `size` of them: if that is odd, the first one is missing */
ALWAYS void places(int64_t i, int64_t size, int64_t *from, int64_t *to) {
    const int64_t start = 2 * i - size % 2;
    *from = start < 0 ? 0 : start;
    *to = start + 3 > size ? size : start + 3;
}

static int max_pool_images(const void *call, int64_t from, int64_t to, int64_t piece) {
    const pooling *v = call;
    for (int64_t n = from; n < to; n++)
        for (int64_t i = 0; i < v->out_h; i++)
            for (int64_t j = 0; j < v->out_w; j++) {
                const float *x = v->x + n * v->h * v->w * v->c;
                float *restrict y = v->result + ((n * v->out_h + i) * v->out_w + j) * v->c;
                int64_t top, bottom, left, right;
                places(i, v->h, &top, &bottom), places(j, v->w, &left, &right);
                memcpy(y, x + (top * v->w + left) * v->c, v->c * sizeof(float));
                for (int64_t a = top; a < bottom; a++)
                    for (int64_t b = left; b < right; b++)
                        for (int64_t c = 0; c < v->c; c++) {
                            const float value = x[(a * v->w + b) * v->c + c];
                            y[c] = value > y[c] || value != value ? value : y[c];
                        }
            }
    return 0;
}

static int backward_pool_images(const void *call, int64_t from, int64_t to, int64_t piece) {
    const pooling *v = call;
    const int64_t size = v->h * v->w * v->c;
    float *left_over = malloc(v->c * sizeof(float));
    if (!left_over) return no_memory();
    for (int64_t n = from; n < to; n++) {
        memset(v->result + n * size, 0, size * sizeof(float));
        for (int64_t i = 0; i < v->out_h; i++)
            for (int64_t j = 0; j < v->out_w; j++) {
                const int64_t pixel = ((n * v->out_h + i) * v->out_w + j) * v->c;
                const float *y = v->y + pixel;
                float *restrict rest = left_over;
                int64_t top, bottom, left, right;
                places(i, v->h, &top, &bottom), places(j, v->w, &left, &right);
                memcpy(rest, v->gradient + pixel, v->c * sizeof(float));
                for (int64_t a = top; a < bottom; a++)
                    for (int64_t b = left; b < right; b++) {
                        const int64_t place = n * size + (a * v->w + b) * v->c;
                        const float *x = v->x + place;
                        float *restrict result = v->result + place;
                        for (int64_t c = 0; c < v->c; c++) { /* the first of equals takes it */
                            const float taken = x[c] == y[c] ? rest[c] : 0;
                            result[c] += taken;
                            rest[c] = x[c] == y[c] ? 0 : rest[c];
                        }
                    }
            }
    }
    free(left_over);
    return 0;
}

/* x -> y [N, (H + 1) / 2, (W + 1) / 2, C] */
API(max_pool) {
    pooling v = describe_pooling(shapes[0]);
    v.x = data[0], v.result = data[1];
    return each(shapes[0][0], piece_of(shapes[0][0]), max_pool_images, &v);
}

/* gradient of y, x, y -> gradient of x */
API(max_pool_backward) {
    pooling v = describe_pooling(shapes[1]);
    v.gradient = data[0], v.x = data[1], v.y = data[2], v.result = data[3];
    return each(shapes[1][0], piece_of(shapes[1][0]), backward_pool_images, &v);
}

/* ---- the steps of an LSTM; rows of a batch go through all of them, apart from each other ---- */

/* exp, from -87 to 87, to 1e-7 of it: 2 to the power of a whole number, times a polynomial */
ALWAYS float fast_exp(float x) {
    const float inside = x < -87.0f ? -87.0f : x > 87.0f ? 87.0f : x;
    const float round = 12582912.0f; /* adding it drops what follows the point */
    const float whole = inside * 1.44269504f + round - round;
    const float r = inside - whole * 0.693359375f + whole * 2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    union { int32_t bits; float value; } scale = {((int32_t)whole + 127) << 23};
    return y * scale.value;
}

ALWAYS float sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }
ALWAYS float fast_tanh(float x) { return 1.0f - 2.0f / (1.0f + fast_exp(2.0f * x)); }

typedef struct {
    int64_t steps, rows, size; /* T, B, H */
    const float *gates, *keep, *hidden, *cells, *weights;
    float *outputs, *memory, *opened, *contents, *squashed;
    const float *by_outputs, *by_memory;
    float *by_gates, *by_hidden, *by_cells;
} lstm;

/* [rows, from] times the weights: a convolution of one row of pixels */
static conv product(int64_t rows, int64_t from, int64_t to, const float *weights) {
    return (conv){.planes = 1, .h = 1, .w = rows, .c = from, .k = 1, .stride = 1, .out_h = 1,
                  .out_w = rows, .out = to, .weights = weights};
}

static int lstm_forward_rows(const void *call, int64_t from, int64_t to, int64_t piece) {
    const lstm *v = call;
    const int64_t size = v->size;
    const conv recur = product(to - from, size, 4 * size, v->weights);
    float *before = malloc((to - from) * 5 * size * sizeof(float));
    if (!before) return no_memory();
    float *sums = before + (to - from) * size;
    for (int64_t t = 0; t < v->steps; t++) {
        const float *hidden = t ? v->outputs + (t - 1) * v->rows * size : v->hidden;
        const float *cells = t ? v->memory + (t - 1) * v->rows * size : v->cells;
        for (int64_t b = from; b < to; b++)
            for (int64_t i = 0; i < size; i++)
                before[(b - from) * size + i] = v->keep[t * v->rows + b] * hidden[b * size + i];
        conv2d_image(&recur, before, sums, 4 * size, 0);
        for (int64_t b = from; b < to; b++) {
            const int64_t row = t * v->rows + b;
            const float *x = v->gates + row * 4 * size, *s = sums + (b - from) * 4 * size;
            const float *cell = cells + b * size, keep = v->keep[row];
            float *restrict opened = v->opened + row * 3 * size;
            float *restrict content = v->contents + row * size;
            float *restrict memory = v->memory + row * size;
            float *restrict squashed = v->squashed + row * size;
            float *restrict output = v->outputs + row * size;
            for (int64_t i = 0; i < 3 * size; i++) opened[i] = sigmoid(x[i] + s[i]);
            for (int64_t i = 0; i < size; i++) {
                content[i] = fast_tanh(x[3 * size + i] + s[3 * size + i]);
                memory[i] = opened[size + i] * (keep * cell[i]) + opened[i] * content[i];
                squashed[i] = fast_tanh(memory[i]);
                output[i] = opened[2 * size + i] * squashed[i];
            }
        }
    }
    free(before);
    return 0;
}

/* gates [T, B, 4 H], keep [T, B, 1], hidden, cells [B, H], weights [4 H, H]
   -> outputs, memory [T, B, H], opened [T, B, 3 H], contents, squashed [T, B, H];
   H is 16, 32, ... */
API(lstm_forward) {
    const int64_t size = shapes[2][1];
    const conv recur = product(1, size, 4 * size, NULL);
    float *weights = packed(&recur, data[4]);
    if (!weights) return no_memory();
    lstm v = {.steps = shapes[0][0], .rows = shapes[0][1], .size = size, .gates = data[0],
              .keep = data[1], .hidden = data[2], .cells = data[3], .weights = weights,
              .outputs = data[5], .memory = data[6], .opened = data[7], .contents = data[8],
              .squashed = data[9]};
    const int failure = each(v.rows, share_of(v.rows), lstm_forward_rows, &v);
    free(weights);
    return failure;
}

static int lstm_backward_rows(const void *call, int64_t from, int64_t to, int64_t piece) {
    const lstm *v = call;
    const int64_t size = v->size;
    const conv recur = product(to - from, 4 * size, size, v->weights);
    float *sums = malloc((to - from) * size * sizeof(float));
    if (!sums) return no_memory();
    memset(v->by_hidden + from * size, 0, (to - from) * size * sizeof(float));
    memset(v->by_cells + from * size, 0, (to - from) * size * sizeof(float));
    for (int64_t t = v->steps - 1; t >= 0; t--) {
        const float *cells = t ? v->memory + (t - 1) * v->rows * size : v->cells;
        for (int64_t b = from; b < to; b++) {
            const int64_t row = t * v->rows + b;
            const float *in = v->opened + row * 3 * size, *forget = in + size, *out = forget + size;
            const float *content = v->contents + row * size, *squashed = v->squashed + row * size;
            const float *by_output = v->by_outputs + row * size;
            const float *by_memory = v->by_memory + row * size;
            const float *cell = cells + b * size, keep = v->keep[row];
            const float *by_hidden = v->by_hidden + b * size;
            float *restrict by_cells = v->by_cells + b * size;
            float *restrict by_gates = v->by_gates + row * 4 * size;
            for (int64_t i = 0; i < size; i++) {
                const float h = by_output[i] + by_hidden[i];
                const float c = by_memory[i] + by_cells[i] +
                                h * out[i] * (1.0f - squashed[i] * squashed[i]);
                by_gates[i] = c * content[i] * in[i] * (1.0f - in[i]);
                by_gates[size + i] = c * (keep * cell[i]) * forget[i] * (1.0f - forget[i]);
                by_gates[2 * size + i] = h * squashed[i] * out[i] * (1.0f - out[i]);
                by_gates[3 * size + i] = c * in[i] * (1.0f - content[i] * content[i]);
                by_cells[i] = c * (keep * forget[i]);
            }
        }
        conv2d_image(&recur, v->by_gates + (t * v->rows + from) * 4 * size, sums, size, 0);
        for (int64_t b = from; b < to; b++)
            for (int64_t i = 0; i < size; i++)
                v->by_hidden[b * size + i] = v->keep[t * v->rows + b] * sums[(b - from) * size + i];
    }
    free(sums);
    return 0;
}

/* gradients of outputs and memory, keep, cells, weights, memory, opened, contents, squashed
   -> gradients of gates, hidden, cells */
API(lstm_backward) {
    const int64_t size = shapes[3][1];
    const conv recur = product(1, size, 4 * size, NULL);
    float *weights = turned(&recur, data[4]);
    if (!weights) return no_memory();
    lstm v = {.steps = shapes[0][0], .rows = shapes[0][1], .size = size, .by_outputs = data[0],
              .by_memory = data[1], .keep = data[2], .cells = data[3], .weights = weights,
              .memory = data[5], .opened = data[6], .contents = data[7], .squashed = data[8],
              .by_gates = data[9], .by_hidden = data[10], .by_cells = data[11]};
    const int failure = each(v.rows, share_of(v.rows), lstm_backward_rows, &v);
    free(weights);
    return failure;
}
