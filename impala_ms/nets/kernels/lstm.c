/* The steps of an LSTM over a sequence, and their gradient.

   Why: MindSpore has about a dozen operators for a step, and a graph of all of them: with T = 80,
   32 environments and 256 units it takes seconds to compile. Here a sequence is one operator, which
   compiles at once whatever T is and takes two thirds of the time (README.md of tests/benchmarks
   has the figures). Rows of a batch do not depend on each other: each thread takes some of them
   through all steps.

   What goes in does so with the products of inputs and their weights done: those are one large
   matrix product of MindSpore's, before the steps. T steps, B rows, H units; H is a multiple of 16.

     gate_inputs [T, B, 4 H]   from the inputs to the input, forget, output gate and the candidate
     keep        [T, B, 1]     0 where an episode begins: the state is emptied before the row
     hidden, cells [B, H]      the state before row 0
     weights     [4 H, H]      from the hidden state to gates and candidate

   Out: outputs (the hidden state after each row), cells, the open gates [T, B, 3 H], candidates and
   tanh(cells), [T, B, H] each but for the gates; the last three are for the gradient.

     h, c = keep * (h, c);  i, f, o = sigmoid(x + W h);  g = tanh(x + W h);
     c = f * c + i * g;  h = o * tanh(c)

   Source: Gers et al. 2000, doi:10.1162/089976600300015015. The gradient is backpropagation through
   time of these equations. */

#include "kernels.h"

/* ---- exp, sigmoid, tanh ---- */

/* exp within 1e-7 of its value, x held within -87 ... 87: 2 to the power of a whole number, times a
   polynomial. A library's expf is a call for each number; this one is vectorised by the compiler.
   Source: Moshier's Cephes library, expf.c. */
ALWAYS_INLINE float fast_exp(float x) {
    const float inside = x < -87.0f ? -87.0f : x > 87.0f ? 87.0f : x;
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    const float whole = inside * 1.44269504f + round - round; /* 1 / ln 2 */
    const float r = inside - whole * 0.693359375f + whole * 2.12194440e-4f; /* ln 2 in two parts */
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

ALWAYS_INLINE float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }
ALWAYS_INLINE float fast_tanh(float x) { return 1.0f - 2.0f / (1.0f + fast_exp(2.0f * x)); }

/* ---- the steps ---- */

typedef struct {
    int64_t steps, rows, size; /* T, B, H */
    const float *keep, *first_cells, *weights; /* weights packed for matmul */
    const float *gate_inputs, *first_hidden;                          /* forward only */
    float *outputs, *cells, *gates, *candidates, *tanh_cells;
    const float *d_outputs, *d_cells_out;                             /* backward only */
    float *d_gate_inputs, *d_hidden, *d_cells;
} lstm;

/* [rows, inputs] times the weights: a convolution of an image with one line of pixels. */
static conv2d matmul(int64_t rows, int64_t inputs, int64_t outputs, const float *weights) {
    return (conv2d){.planes = 1, .height = 1, .width = rows, .channels = inputs, .kernel = 1,
                    .stride = 1, .out_height = 1, .out_width = rows, .outputs = outputs,
                    .weights = weights};
}

/* The cells before step t. */
static const float *cells_before(const lstm *v, int64_t t) {
    return t ? v->cells + (t - 1) * v->rows * v->size : v->first_cells;
}

static int forward_rows(const void *arguments, int64_t from, int64_t to, int64_t chunk) {
    const lstm *v = arguments;
    const int64_t size = v->size;
    const conv2d recurrent = matmul(to - from, size, 4 * size, v->weights);
    float *kept = malloc((to - from) * 5 * size * sizeof(float));
    if (!kept) return no_memory();
    float *products = kept + (to - from) * size;
    for (int64_t t = 0; t < v->steps; t++) {
        const float *hidden = t ? v->outputs + (t - 1) * v->rows * size : v->first_hidden;
        for (int64_t b = from; b < to; b++)
            for (int64_t i = 0; i < size; i++)
                kept[(b - from) * size + i] = v->keep[t * v->rows + b] * hidden[b * size + i];
        conv2d_image(&recurrent, kept, products, 4 * size, 0);
        for (int64_t b = from; b < to; b++) {
            const int64_t row = t * v->rows + b;
            const float *x = v->gate_inputs + row * 4 * size;
            const float *wh = products + (b - from) * 4 * size;
            const float *cell_before = cells_before(v, t) + b * size, keep = v->keep[row];
            float *restrict gates = v->gates + row * 3 * size;
            float *restrict candidate = v->candidates + row * size;
            float *restrict cell = v->cells + row * size;
            float *restrict tanh_cell = v->tanh_cells + row * size;
            float *restrict output = v->outputs + row * size;
            for (int64_t i = 0; i < 3 * size; i++) gates[i] = fast_sigmoid(x[i] + wh[i]);
            for (int64_t i = 0; i < size; i++) {
                candidate[i] = fast_tanh(x[3 * size + i] + wh[3 * size + i]);
                cell[i] = gates[size + i] * (keep * cell_before[i]) + gates[i] * candidate[i];
                tanh_cell[i] = fast_tanh(cell[i]);
                output[i] = gates[2 * size + i] * tanh_cell[i];
            }
        }
    }
    free(kept);
    return 0;
}

/* gate_inputs, keep, hidden, cells, weights -> outputs, cells, gates, candidates, tanh_cells */
KERNEL(lstm_forward) {
    const int64_t size = shapes[2][1];
    const conv2d recurrent = matmul(1, size, 4 * size, NULL);
    float *weights = pack_weights(&recurrent, data[4]);
    if (!weights) return no_memory();
    const lstm v = {.steps = shapes[0][0], .rows = shapes[0][1], .size = size,
                    .gate_inputs = data[0], .keep = data[1], .first_hidden = data[2],
                    .first_cells = data[3], .weights = weights, .outputs = data[5],
                    .cells = data[6], .gates = data[7], .candidates = data[8],
                    .tanh_cells = data[9]};
    const int error = parallel_for(v.rows, chunk_per_thread(v.rows), forward_rows, &v);
    free(weights);
    return error;
}

static int backward_rows(const void *arguments, int64_t from, int64_t to, int64_t chunk) {
    const lstm *v = arguments;
    const int64_t size = v->size;
    const conv2d recurrent = matmul(to - from, 4 * size, size, v->weights);
    float *products = malloc((to - from) * size * sizeof(float));
    if (!products) return no_memory();
    memset(v->d_hidden + from * size, 0, (to - from) * size * sizeof(float));
    memset(v->d_cells + from * size, 0, (to - from) * size * sizeof(float));
    for (int64_t t = v->steps - 1; t >= 0; t--) {
        for (int64_t b = from; b < to; b++) {
            const int64_t row = t * v->rows + b;
            const float *in = v->gates + row * 3 * size, *forget = in + size, *out = forget + size;
            const float *candidate = v->candidates + row * size;
            const float *tanh_cell = v->tanh_cells + row * size;
            const float *d_output = v->d_outputs + row * size;
            const float *d_cell_out = v->d_cells_out + row * size;
            const float *cell_before = cells_before(v, t) + b * size, keep = v->keep[row];
            const float *d_hidden = v->d_hidden + b * size;
            float *restrict d_cells = v->d_cells + b * size;
            float *restrict d_gates = v->d_gate_inputs + row * 4 * size;
            for (int64_t i = 0; i < size; i++) {
                const float h = d_output[i] + d_hidden[i];
                const float c = d_cell_out[i] + d_cells[i] +
                                h * out[i] * (1.0f - tanh_cell[i] * tanh_cell[i]);
                d_gates[i] = c * candidate[i] * in[i] * (1.0f - in[i]);
                d_gates[size + i] = c * (keep * cell_before[i]) * forget[i] * (1.0f - forget[i]);
                d_gates[2 * size + i] = h * tanh_cell[i] * out[i] * (1.0f - out[i]);
                d_gates[3 * size + i] = c * in[i] * (1.0f - candidate[i] * candidate[i]);
                d_cells[i] = c * (keep * forget[i]);
            }
        }
        conv2d_image(&recurrent, v->d_gate_inputs + (t * v->rows + from) * 4 * size, products,
                     size, 0);
        for (int64_t b = from; b < to; b++)
            for (int64_t i = 0; i < size; i++)
                v->d_hidden[b * size + i] =
                    v->keep[t * v->rows + b] * products[(b - from) * size + i];
    }
    free(products);
    return 0;
}

/* gradients of outputs and of cells [T, B, H], then keep, cells [B, H], weights, and of the results
   cells [T, B, H], gates, candidates, tanh_cells -> gradients of gate_inputs, hidden, cells [B, H].
   The gradient of the weights is one matrix product, left to MindSpore. */
KERNEL(lstm_backward) {
    const int64_t size = shapes[3][1];
    const conv2d recurrent = matmul(1, size, 4 * size, NULL);
    float *weights = pack_rotated_weights(&recurrent, data[4]);
    if (!weights) return no_memory();
    const lstm v = {.steps = shapes[0][0], .rows = shapes[0][1], .size = size,
                    .d_outputs = data[0], .d_cells_out = data[1], .keep = data[2],
                    .first_cells = data[3], .weights = weights, .cells = data[5],
                    .gates = data[6], .candidates = data[7], .tanh_cells = data[8],
                    .d_gate_inputs = data[9], .d_hidden = data[10], .d_cells = data[11]};
    const int error = parallel_for(v.rows, chunk_per_thread(v.rows), backward_rows, &v);
    free(weights);
    return error;
}
