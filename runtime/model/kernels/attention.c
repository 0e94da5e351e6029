/* Attention of decoding requests, one query each, straight from the blocks of keys and values.

   Sixteen tokens of a sequence at a time, all kv heads of them, as they lie in memory; up to four
   queries that share a kv head read it at once. Sums are in float. */

#include "lanes.h"

#define TOGETHER 4 /* queries; with four lanes of a value each, their sums stay in registers */

#define COMBINE(a, b, kept, crossed)                                                               \
    (__builtin_shufflevector(a, b, kept) + __builtin_shufflevector(a, b, crossed))
#define LIST(...) __VA_ARGS__

/* The sixteen sums of sixteen lanes each: that of parts[j] in lane j. A step adds lanes that are
   8, 4, 2, then 1 apart, of two vectors whose results fill one. */
INLINE lanes sums_of(lanes parts[WIDTH]) {
    for (int j = 0; j < 8; j++)
        parts[j] = COMBINE(parts[j], parts[j + 8],
                           LIST(0, 1, 2, 3, 4, 5, 6, 7, 24, 25, 26, 27, 28, 29, 30, 31),
                           LIST(8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23));
    for (int j = 0; j < 4; j++)
        parts[j] = COMBINE(parts[j], parts[j + 4],
                           LIST(0, 1, 2, 3, 20, 21, 22, 23, 8, 9, 10, 11, 28, 29, 30, 31),
                           LIST(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27));
    for (int j = 0; j < 2; j++)
        parts[j] = COMBINE(parts[j], parts[j + 2],
                           LIST(0, 1, 18, 19, 4, 5, 22, 23, 8, 9, 26, 27, 12, 13, 30, 31),
                           LIST(2, 3, 16, 17, 6, 7, 20, 21, 10, 11, 24, 25, 14, 15, 28, 29));
    return COMBINE(parts[0], parts[1],
                   LIST(0, 17, 2, 19, 4, 21, 6, 23, 8, 25, 10, 27, 12, 29, 14, 31),
                   LIST(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30));
}

/* Scores of sixteen tokens, of `count` queries [count, width], to scores [count, apart]. */
INLINE void score(const float *queries, const void *keys, const int64_t *where, float *scores,
                  int64_t apart, int count, int64_t dim, int64_t width, enum type type) {
    lanes parts[TOGETHER][WIDTH];
    for (int j = 0; j < WIDTH; j++) {
        lanes dot[TOGETHER] = {};
        for (int64_t d = 0; d < dim; d += WIDTH) {
            lanes key = load(keys, where[j] + d, dim - d, type);
            for (int g = 0; g < count; g++)
                dot[g] += key * load(queries, g * width + d, WIDTH, F32);
        }
        for (int g = 0; g < count; g++) parts[g][j] = dot[g];
    }
    for (int g = 0; g < count; g++) store(scores, g * apart, WIDTH, sums_of(parts[g]), F32);
}

/* sums [count, width] += the values of `tokens` tokens, by weights [count, apart]. */
INLINE void weigh(float *sums, const void *values, const int64_t *where, const float *weights,
                  int64_t apart, int tokens, int count, int64_t dim, int64_t width,
                  enum type type) {
    int at_once = dim % (4 * WIDTH) ? 1 : 4;
    for (int64_t d = 0; d < dim; d += at_once * WIDTH) {
        lanes sum[TOGETHER][4];
        for (int g = 0; g < count; g++)
            for (int c = 0; c < at_once; c++)
                sum[g][c] = load(sums, g * width + d + c * WIDTH, WIDTH, F32);
        for (int j = 0; j < tokens; j++)
            for (int c = 0; c < at_once; c++) {
                int64_t from = d + c * WIDTH;
                lanes value = load(values, where[j] + from, dim - from, type);
                for (int g = 0; g < count; g++) sum[g][c] += weights[g * apart + j] * value;
            }
        for (int g = 0; g < count; g++)
            for (int c = 0; c < at_once; c++)
                store(sums, g * width + d + c * WIDTH, WIDTH, sum[g][c], F32);
    }
}

/* scores [padded], of which the first `length` count, become e^(score - the largest), the others
   0; returns their sum. */
INLINE float exponentials(float *scores, int64_t length, int64_t padded) {
    const int_lanes numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int_lanes beyond = numbers >= (int32_t)(length - (padded - WIDTH));
    lanes last = load(scores, padded - WIDTH, WIDTH, F32);
    store(scores, padded - WIDTH, WIDTH, choose(beyond, everywhere(-INFINITY), last), F32);
    lanes peaks = load(scores, 0, WIDTH, F32), total = {};
    for (int64_t t = WIDTH; t < padded; t += WIDTH) {
        lanes next = load(scores, t, WIDTH, F32);
        peaks = choose(next > peaks, next, peaks);
    }
    float peak = largest_of(peaks);
    for (int64_t t = 0; t < padded; t += WIDTH) {
        lanes power = exponential(load(scores, t, WIDTH, F32) - peak);
        if (t + WIDTH > length) power = choose(beyond, (lanes){}, power);
        store(scores, t, WIDTH, power, F32);
        total += power;
    }
    return sum_of(total);
}

/* Where sixteen tokens from t on have their keys, of kv head 0; past the end, the last one's. */
INLINE void find(const int64_t *table, int64_t t, int64_t length, int64_t block_size,
                 int64_t token_size, int64_t where[WIDTH]) {
    int64_t block = t / block_size, within = t % block_size;
    for (int64_t j = 0; j < WIDTH; j++) {
        where[j] = (table[block] * block_size + within) * token_size;
        if (t + j + 1 >= length) continue;
        if (++within == block_size) {
            within = 0;
            block++;
        }
    }
}

/* Asks for what sixteen tokens have from `first` on, `size` elements each. */
INLINE void fetch(const void *from, const int64_t where[WIDTH], int64_t first, int64_t size,
                  enum type type) {
    for (int j = 0; j < WIDTH; j++) {
        const char *token = element(from, where[j] + first, type);
        for (int64_t byte = 0; byte < size * (int64_t)size_of(type); byte += 64)
            __builtin_prefetch(token + byte);
    }
}

#define WITH_CONSTANT(count, CALL)                                                                 \
    switch (count) {                                                                               \
    case 1: { enum { COUNT = 1 }; CALL; } break;                                                   \
    case 2: { enum { COUNT = 2 }; CALL; } break;                                                   \
    case 3: { enum { COUNT = 3 }; CALL; } break;                                                   \
    default: { enum { COUNT = 4 }; CALL; }                                                         \
    }

/* kv heads first..last of one request: q and out are its [heads, dim]. */
INLINE void attend(const void *q, const void *keys, const void *values, const int64_t *table,
                   void *out, float *scratch, int64_t length, int64_t block_size, int64_t first,
                   int64_t last, int64_t shared, int64_t kv_heads, int64_t dim, float scale,
                   enum type type) {
    int64_t rows = (last - first) * shared, token_size = kv_heads * dim;
    int64_t width = (dim + WIDTH - 1) / WIDTH * WIDTH;
    int64_t padded = (length + WIDTH - 1) / WIDTH * WIDTH;
    float *queries = scratch, *sums = queries + rows * width, *scores = sums + rows * width;
    int64_t where[WIDTH], next[WIDTH], head[WIDTH], used = (last - first) * dim;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < dim; d += WIDTH) {
            lanes query = load(q, (first * shared + r) * dim + d, dim - d, type);
            store(queries, r * width + d, WIDTH, query * scale, F32);
            store(sums, r * width + d, WIDTH, (lanes){}, F32);
        }
    find(table, 0, length, block_size, token_size, next);
    for (int64_t t = 0; t < length; t += WIDTH) {
        memcpy(where, next, sizeof where);
        if (t + WIDTH < length) {
            find(table, t + WIDTH, length, block_size, token_size, next);
            fetch(keys, next, first * dim, used, type);
        }
        for (int64_t h = first; h < last; h++) {
            for (int j = 0; j < WIDTH; j++) head[j] = where[j] + h * dim;
            for (int64_t g = 0; g < shared; g += TOGETHER) {
                int64_t r = (h - first) * shared + g;
                WITH_CONSTANT(at_most(shared - g, TOGETHER),
                              score(queries + r * width, keys, head, scores + r * padded + t,
                                    padded, COUNT, dim, width, type))
            }
        }
    }
    find(table, 0, length, block_size, token_size, where);
    fetch(values, where, first * dim, used, type);
    float totals[rows];
    for (int64_t r = 0; r < rows; r++)
        totals[r] = exponentials(scores + r * padded, length, padded);
    find(table, 0, length, block_size, token_size, next);
    for (int64_t t = 0; t < length; t += WIDTH) {
        int tokens = (int)at_most(length - t, WIDTH);
        memcpy(where, next, sizeof where);
        if (t + WIDTH < length) {
            find(table, t + WIDTH, length, block_size, token_size, next);
            fetch(values, next, first * dim, used, type);
        }
        for (int64_t h = first; h < last; h++) {
            for (int j = 0; j < WIDTH; j++) head[j] = where[j] + h * dim;
            for (int64_t g = 0; g < shared; g += TOGETHER) {
                int64_t r = (h - first) * shared + g;
                WITH_CONSTANT(at_most(shared - g, TOGETHER),
                              weigh(sums + r * width, values, head, scores + r * padded + t,
                                    padded, tokens, COUNT, dim, width, type))
            }
        }
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < dim; d += WIDTH)
            store(out, (first * shared + r) * dim + d, dim - d,
                  load(sums, r * width + d, WIDTH, F32) / totals[r], type);
}

#define KERNELS(NAME, TYPE)                                                                        \
    /* One query a request: row rows[i] of q (stride elements apart) and of out [heads, dim]       \
       attends to lengths[i] tokens, in the blocks that tables[i, width] lists. 0 if there is no   \
       memory for the scores; then out is undefined. */                                            \
    int decode_attention_##NAME(const void *q, int64_t stride, const void *keys,                   \
                                const void *values, const int64_t *rows, const int64_t *tables,    \
                                const int64_t *lengths, void *out, int64_t count, int64_t width,   \
                                int64_t block_size, int64_t heads, int64_t kv_heads, int64_t dim,  \
                                float scale, int threads) {                                        \
        int64_t shared = heads / kv_heads;                                                         \
        int64_t at_once = count >= 2 * threads ? kv_heads : 1; /* few requests: share out heads */ \
        int64_t parts = kv_heads / at_once;                                                        \
        int failed = 0;                                                                            \
        _Pragma("omp parallel for schedule(dynamic, 1) num_threads(threads)")                      \
        for (int64_t task = 0; task < count * parts; task++) {                                     \
            int64_t i = task / parts, first = task % parts * at_once, last = first + at_once;      \
            int64_t needed = at_once * shared * (2 * (dim + WIDTH) + lengths[i] + WIDTH);          \
            float *scratch = malloc((size_t)needed * sizeof(float));                               \
            if (!scratch) {                                                                        \
                failed = 1;                                                                        \
                continue;                                                                          \
            }                                                                                      \
            const void *query = element(q, rows[i] * stride, TYPE);                                \
            const int64_t *table = tables + i * width;                                             \
            void *to = target(out, rows[i] * heads * dim, TYPE);                                   \
            /* A constant head size lets the compiler keep whole rows in registers. */             \
            if (dim == 64)                                                                         \
                attend(query, keys, values, table, to, scratch, lengths[i], block_size, first,     \
                       last, shared, kv_heads, 64, scale, TYPE);                                   \
            else if (dim == 128)                                                                   \
                attend(query, keys, values, table, to, scratch, lengths[i], block_size, first,     \
                       last, shared, kv_heads, 128, scale, TYPE);                                  \
            else                                                                                   \
                attend(query, keys, values, table, to, scratch, lengths[i], block_size, first,     \
                       last, shared, kv_heads, dim, scale, TYPE);                                  \
            free(scratch);                                                                         \
        }                                                                                          \
        return !failed;                                                                            \
    }

KERNELS(f32, F32)
KERNELS(bf16, BF16)
