// The kernels of the CUDA engine, compiled at run time. T is the type of activations: bfloat16 where BF16 is defined,
// else float. Sums are fp32, their totals fp64. Nothing is included, so that no toolkit is needed.
//
// Maps lie as rows of channels (NHWC: index = row * C + c) or, where P > 0, as planes of P pixels (NCHW). V is the number
// of values that a thread moves at once, along the channels in NHWC; kernels come as name_1 and name_v.

typedef long long i64;
typedef unsigned long long u64;

// What changes from step to step.
struct Control {
    u64 stream;
    int live, passes;
    // The part of old running statistics that may stay at most: a layer's momentum holds where it is less.
    double keep;
    // The next update's learning rate and, for Adam, the root of its correction of bias.
    float rate, root;
};

struct Score {
    float loss;
    unsigned correct;
};

#ifdef BF16
typedef unsigned short T;
#define VEC 8
__device__ __forceinline__ float lift(T v) { return __uint_as_float((unsigned)v << 16); }
__device__ __forceinline__ T lower(float f) {
    T r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(f));
    return r;
}
#else
typedef float T;
#define VEC 4
__device__ __forceinline__ float lift(T v) { return v; }
__device__ __forceinline__ T lower(float f) { return f; }
#endif

template <int V> struct alignas(V * sizeof(T)) Pack { T v[V]; };

// All values of a pack; those of bf16 a word of two at a time, which takes half the instructions.
template <int V> __device__ __forceinline__ void lift(const Pack<V>& pack, float* out) {
    if constexpr (sizeof(T) == 2 && V > 1) {
#pragma unroll
        for (int i = 0; i < V; i += 2) {
            unsigned word = ((const unsigned*)&pack)[i / 2];
            out[i] = __uint_as_float(word << 16), out[i + 1] = __uint_as_float(word & 0xFFFF0000u);
        }
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) out[i] = lift(pack.v[i]);
    }
}

template <int V> __device__ __forceinline__ Pack<V> lower(const float* in) {
    Pack<V> pack;
    if constexpr (sizeof(T) == 2 && V > 1) {
#pragma unroll
        for (int i = 0; i < V; i += 2)
            asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(((unsigned*)&pack)[i / 2]) : "f"(in[i + 1]), "f"(in[i]));
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) pack.v[i] = lower(in[i]);
    }
    return pack;
}

template <int V> __device__ __forceinline__ void get(const T* at, float* out) { lift(*(const Pack<V>*)at, out); }

template <int V> __device__ __forceinline__ void put(T* at, const float* in) { *(Pack<V>*)at = lower<V>(in); }

__device__ __forceinline__ float bound(float value, float low, float high) { return fminf(fmaxf(value, low), high); }

__device__ __forceinline__ i64 place(i64 row, int c, int C, int P) {
    return P == 0 ? row * C + c : (row / P * C + c) * P + row % P;
}

// First in every kernel: lets the next one of the stream take its places, and waits for the one before.
#define ENTER asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory")

#define BOTH(name, params, args)                                                                   \
    extern "C" __global__ void __launch_bounds__(512) name##_1 params { ENTER; name<1> args; }     \
    extern "C" __global__ void __launch_bounds__(512) name##_v params { ENTER; name<VEC> args; }

// ---- sums over rows, per channel ------------------------------------------------------------------------------------

// Adds up both sums of a block's channels over its threads; the result is in the threads of the first row.
template <int V> __device__ void fold(float* a, float* b) {
    extern __shared__ __align__(16) float shared[];
    int threads = blockDim.x * blockDim.y, me = threadIdx.y * blockDim.x + threadIdx.x;
    for (int count = blockDim.y; count > 1;) {
        int half = (count + 1) / 2;
        if (threadIdx.y >= half && threadIdx.y < count)
#pragma unroll
            for (int i = 0; i < V; i++) {
                shared[i * threads + me] = a[i];
                shared[(V + i) * threads + me] = b[i];
            }
        __syncthreads();
        if (threadIdx.y + half < count) {
            int other = me + half * blockDim.x;
#pragma unroll
            for (int i = 0; i < V; i++) {
                a[i] += shared[i * threads + other];
                b[i] += shared[(V + i) * threads + other];
            }
        }
        __syncthreads();
        count = half;
    }
}

// Leaves a block's sums among the parts. True in the block that comes last for its channels, which then sees all parts.
template <int V> __device__ bool leave(float* a, float* b, int C, float* parts, unsigned* counters) {
    __shared__ bool last;
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * V;
    if (threadIdx.y == 0 && c < C) {
        float* row = parts + (i64)blockIdx.y * 2 * C;
#pragma unroll
        for (int i = 0; i < V; i++) {
            row[c + i] = a[i];
            row[C + c + i] = b[i];
        }
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        last = atomicAdd(&counters[blockIdx.x], 1) == gridDim.y - 1;
        if (last) counters[blockIdx.x] = 0;
    }
    __syncthreads();
    __threadfence();
    return last;
}

// Totals of both sums of each of this block's channels, over all parts in a fixed order: calls done(c, first, second). A
// thread adds up neighbours, as many as one load brings.
template <int V, class Done> __device__ void total(int C, const float* parts, Done done) {
    extern __shared__ __align__(16) float shared[];
    const int E = V % 4 == 0 ? 4 : 1;
    double* sums = (double*)shared;
    int threads = blockDim.x * blockDim.y, me = threadIdx.y * blockDim.x + threadIdx.x;
    int width = blockDim.x * V, lanes = 2 * width / E, groups = max(threads / lanes, 1), base = blockIdx.x * width;
    __syncthreads();
    for (int at = me; at < groups * lanes; at += threads) {
        int group = at / lanes, entry = at % lanes * E, second = entry >= width, c = base + entry - second * width;
        double sum[E];
#pragma unroll
        for (int e = 0; e < E; e++) sum[e] = 0;
        if (c < C) {
            const float* from = parts + second * C + c;
#pragma unroll 16
            for (int part = group; part < gridDim.y; part += groups) {
                if (E == 4) {
                    float4 v = __ldcg((const float4*)(from + (i64)part * 2 * C));
                    sum[0] += v.x, sum[1 % E] += v.y, sum[2 % E] += v.z, sum[3 % E] += v.w;
                } else {
                    sum[0] += __ldcg(from + (i64)part * 2 * C);
                }
            }
        }
#pragma unroll
        for (int e = 0; e < E; e++) sums[group * 2 * width + entry + e] = sum[e];
    }
    __syncthreads();
    for (int lane = me; lane < width; lane += threads) {
        double first = 0, second = 0;
        for (int group = 0; group < groups; group++) {
            first += sums[group * 2 * width + lane];
            second += sums[group * 2 * width + width + lane];
        }
        if (base + lane < C) done(base + lane, first, second);
    }
    __threadfence_block();
    __syncthreads();
}

// Rows that a thread reads before it uses the first.
#define FLIGHT 4

struct Rows {
    i64 first, last;
    int c;
};

// The rows of this block's part, for this thread.
template <int V> __device__ __forceinline__ Rows rows_of(i64 rows) {
    i64 each = (rows + gridDim.y - 1) / gridDim.y;
    Rows r;
    r.first = blockIdx.y * each + threadIdx.y;
    r.last = min((i64)(blockIdx.y + 1) * each, rows);
    r.c = (blockIdx.x * blockDim.x + threadIdx.x) * V;
    return r;
}

// N runs of rows on their way from memory, a few rows ahead of their use. A thread fetches what it uses itself, so that
// nobody waits for another, and what is under way takes no registers. All rows of a step abreast, from the first on or, in
// reverse, from the last: where the layer before has just written, and what is read last is met again first.
template <int N> struct Flow {
    static const int DEPTH = N == 1 ? 8 : N == 2 ? 6 : N == 3 ? 5 : 4;
    const T* from[N];
    unsigned slot, each;
    int in, out;
    i64 rows, row, ahead, step, at, to, stride;

    __device__ __forceinline__ Flow(i64 rows, int C, int c, bool reverse) : rows(rows) {
        extern __shared__ __align__(16) float shared[];
        slot = (unsigned)__cvta_generic_to_shared(shared) + 16 * (threadIdx.y * blockDim.x + threadIdx.x);
        each = 16 * blockDim.x * blockDim.y;
        in = out = 0;
        step = (i64)gridDim.y * blockDim.y;
        row = ahead = (i64)blockIdx.y * blockDim.y + threadIdx.y;
        at = to = (reverse ? rows - 1 - row : row) * C + c;
        stride = reverse ? -step * C : step * C;
    }

    __device__ __forceinline__ void fetch() {
        if (ahead < rows)
#pragma unroll
            for (int n = 0; n < N; n++)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(slot + (in * N + n) * each),
                             "l"(from[n] + to)
                             : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
        in = in + 1 == DEPTH ? 0 : in + 1;
        ahead += step;
        to += stride;
    }

    // Calls use(values, place) for each row of this thread.
    template <class Use> __device__ __forceinline__ void run(Use use) {
        for (int k = 1; k < DEPTH; k++) fetch();
        for (; row < rows; row += step, at += stride) {
            asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 2) : "memory");
            Pack<VEC> v[N];
#pragma unroll
            for (int n = 0; n < N; n++) {
                unsigned* words = (unsigned*)&v[n];
                asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                             : "r"(slot + (out * N + n) * each)
                             : "memory");
            }
            out = out + 1 == DEPTH ? 0 : out + 1;
            fetch();
            use(v, at);
        }
        asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
};

// ---- batch norm -----------------------------------------------------------------------------------------------------

// kept: mean, inverse deviation, scale and shift of each channel. The mean is that of x, without the bias in front.
template <int V>
__device__ void norm_apply(const T* x, const T* residual, T* y, const float* kept, i64 rows, int C, int P, float low,
                           float high) {
    Rows r = rows_of<V>(rows);
    if (r.c >= C) return;
    float scale[V], shift[V];
#pragma unroll
    for (int i = 0; i < V; i++) scale[i] = kept[2 * C + r.c + i], shift[i] = kept[3 * C + r.c + i];
    for (i64 row = r.first; row < r.last; row += FLIGHT * blockDim.y) {
        Pack<V> v[FLIGHT], w[FLIGHT];
#pragma unroll
        for (int u = 0; u < FLIGHT; u++)
            if (row + u * blockDim.y < r.last) {
                i64 at = place(row + u * blockDim.y, r.c, C, P);
                v[u] = *(const Pack<V>*)(x + at);
                if (residual) w[u] = *(const Pack<V>*)(residual + at);
            }
#pragma unroll
        for (int u = 0; u < FLIGHT; u++)
            if (row + u * blockDim.y < r.last) {
#pragma unroll
                for (int i = 0; i < V; i++) {
                    float value = lift(v[u].v[i]) * scale[i] + shift[i];
                    v[u].v[i] = lower(bound(residual ? value + lift(w[u].v[i]) : value, low, high));
                }
                *(Pack<V>*)(y + place(row + u * blockDim.y, r.c, C, P)) = v[u];
            }
    }
}

// What statistics make of a channel.
__device__ __forceinline__ void norm_settle(int c, double first, double second, float origin, float* kept, i64 rows, int C,
                                            const float* gamma, const float* beta, const float* bias, float* moving_mean,
                                            float* moving_variance, float epsilon, float correction, double momentum,
                                            const Control* control) {
    double mean = first / rows, variance = second / rows - mean * mean;
    variance = variance < 0 ? 0 : variance;
    mean += origin;
    float inverse = (float)(1 / sqrt(variance + (double)epsilon));
    float scale = inverse * (gamma ? gamma[c] : 1.0f);
    kept[c] = (float)mean;
    kept[C + c] = inverse;
    kept[2 * C + c] = scale;
    kept[3 * C + c] = (beta ? beta[c] : 0.0f) - (float)mean * scale;
    double seen = (float)(mean + (bias ? bias[c] : 0.0f)), keep = fmin(momentum, control->keep);
    moving_mean[c] = (float)(keep * moving_mean[c] + (1 - keep) * seen);
    moving_variance[c] = (float)(keep * moving_variance[c] + (1 - keep) * variance * correction);
}

// Statistics of the batch.
template <int V>
__device__ void norm_measure(const T* x, float* kept, i64 rows, int C, int P, const float* gamma, const float* beta,
                             const float* bias, float* moving_mean, float* moving_variance, float epsilon,
                             float correction, double momentum, const Control* control, float* parts,
                             unsigned* counters) {
    Rows r = rows_of<V>(rows);
    float a[V], b[V], pivot[V];
#pragma unroll
    for (int i = 0; i < V; i++) a[i] = b[i] = 0;
    // From the end, where the layer before has just written, and all blocks abreast: what is read last is met again first.
    i64 step = (i64)gridDim.y * blockDim.y;
    if (r.c < C) {
        get<V>(x + place(0, r.c, C, P), pivot);
        for (i64 row = (i64)blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += 2 * FLIGHT * step) {
            Pack<V> v[2 * FLIGHT];
#pragma unroll
            for (int u = 0; u < 2 * FLIGHT; u++)
                if (row + u * step < rows)
                    v[u] = *(const Pack<V>*)(x + place(rows - 1 - row - u * step, r.c, C, P));
#pragma unroll
            for (int u = 0; u < 2 * FLIGHT; u++)
                if (row + u * step < rows)
#pragma unroll
                    for (int i = 0; i < V; i++) {
                        float d = lift(v[u].v[i]) - pivot[i];
                        a[i] += d;
                        b[i] += d * d;
                    }
        }
    }
    fold<V>(a, b);
    if (!leave<V>(a, b, C, parts, counters)) return;
    total<V>(C, parts, [&](int c, double first, double second) {
        norm_settle(c, first, second, lift(x[place(0, c, C, P)]), kept, rows, C, gamma, beta, bias, moving_mean,
                    moving_variance, epsilon, correction, momentum, control);
    });
}

template <int N>
__device__ __forceinline__ void norm_apply_flow(const T* x, const T* residual, T* y, const float* kept, i64 rows, int C,
                                                float low, float high) {
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (c >= C) return;
    float scale[VEC], shift[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i++) scale[i] = kept[2 * C + c + i], shift[i] = kept[3 * C + c + i];
    Flow<N> flow(rows, C, c, false);
    flow.from[0] = x;
    if (N > 1) flow.from[N - 1] = residual;
    flow.run([&](Pack<VEC>* v, i64 at) {
        float value[VEC], more[VEC];
        lift(v[0], value);
        if (N > 1) lift(v[N - 1], more);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            value[i] = value[i] * scale[i] + shift[i];
            value[i] = bound(N > 1 ? value[i] + more[i] : value[i], low, high);
        }
        put<VEC>(y + at, value);
    });
}

extern "C" __global__ void __launch_bounds__(256, 3)
    norm_apply_v(const T* x, const T* residual, T* y, const float* kept, i64 rows, int C, int P, float low, float high) {
    ENTER;
    if (residual)
        norm_apply_flow<2>(x, residual, y, kept, rows, C, low, high);
    else
        norm_apply_flow<1>(x, residual, y, kept, rows, C, low, high);
}

extern "C" __global__ void __launch_bounds__(256, 3)
    norm_measure_v(const T* x, float* kept, i64 rows, int C, int P, const float* gamma, const float* beta,
                   const float* bias, float* moving_mean, float* moving_variance, float epsilon, float correction,
                   double momentum, const Control* control, float* parts, unsigned* counters) {
    ENTER;
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    float a[VEC], b[VEC], pivot[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i++) a[i] = b[i] = 0;
    if (c < C) {
        get<VEC>(x + c, pivot);
        Flow<1> flow(rows, C, c, true);
        flow.from[0] = x;
        flow.run([&](Pack<VEC>* v, i64) {
            float value[VEC];
            lift(v[0], value);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                float d = value[i] - pivot[i];
                a[i] += d;
                b[i] += d * d;
            }
        });
    }
    __syncthreads();
    fold<VEC>(a, b);
    if (!leave<VEC>(a, b, C, parts, counters)) return;
    total<VEC>(C, parts, [&](int c, double first, double second) {
        norm_settle(c, first, second, lift(x[c]), kept, rows, C, gamma, beta, bias, moving_mean, moving_variance, epsilon,
                    correction, momentum, control);
    });
}

extern "C" __global__ void __launch_bounds__(256, 3)
    norm_apply_1(const T* x, const T* residual, T* y, const float* kept, i64 rows, int C, int P, float low, float high) {
    ENTER;
    norm_apply<1>(x, residual, y, kept, rows, C, P, low, high);
}

extern "C" __global__ void __launch_bounds__(256, 2)
    norm_measure_1(const T* x, float* kept, i64 rows, int C, int P, const float* gamma, const float* beta,
                   const float* bias, float* moving_mean, float* moving_variance, float epsilon, float correction,
                   double momentum, const Control* control, float* parts, unsigned* counters) {
    ENTER;
    norm_measure<1>(x, kept, rows, C, P, gamma, beta, bias, moving_mean, moving_variance, epsilon, correction, momentum,
                    control, parts, counters);
}

// Scale and shift from the running statistics.
extern "C" __global__ void norm_recall(float* kept, int C, const float* gamma, const float* beta, const float* bias,
                                       const float* moving_mean, const float* moving_variance, float epsilon) {
    ENTER;
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) return;
    float scale = (gamma ? gamma[c] : 1.0f) / sqrtf(moving_variance[c] + epsilon);
    kept[2 * C + c] = scale;
    kept[3 * C + c] = (beta ? beta[c] : 0.0f) - (moving_mean[c] - (bias ? bias[c] : 0.0f)) * scale;
}

// Gradient of the input from that of the output; factors: slope and constant of each channel. Where the gradient is
// bounded already, it passes as it is.
template <int V>
__device__ void norm_input(const T* x, bool bounded, const T* dy, T* dx, const float* kept, const float* factors, i64 rows,
                           int C, int P, float low, float high) {
    Rows r = rows_of<V>(rows);
    if (r.c >= C) return;
    float scale[V], shift[V], slope[V], constant[V];
#pragma unroll
    for (int i = 0; i < V; i++) {
        scale[i] = kept[2 * C + r.c + i];
        shift[i] = kept[3 * C + r.c + i];
        slope[i] = __ldcg(factors + r.c + i);
        constant[i] = __ldcg(factors + C + r.c + i) - kept[r.c + i] * slope[i];
    }
    for (i64 row = r.first; row < r.last; row += FLIGHT * blockDim.y) {
        Pack<V> v[FLIGHT], g[FLIGHT];
#pragma unroll
        for (int u = 0; u < FLIGHT; u++)
            if (row + u * blockDim.y < r.last) {
                i64 at = place(row + u * blockDim.y, r.c, C, P);
                v[u] = *(const Pack<V>*)(x + at);
                g[u] = *(const Pack<V>*)(dy + at);
            }
#pragma unroll
        for (int u = 0; u < FLIGHT; u++)
            if (row + u * blockDim.y < r.last) {
#pragma unroll
                for (int i = 0; i < V; i++) {
                    float value = lift(v[u].v[i]), probe = value * scale[i] + shift[i];
                    float grad = bounded || (probe > low && probe < high) ? lift(g[u].v[i]) : 0.0f;
                    g[u].v[i] = lower(grad * scale[i] + value * slope[i] + constant[i]);
                }
                *(Pack<V>*)(dx + place(row + u * blockDim.y, r.c, C, P)) = g[u];
            }
    }
}

// What sums make of a channel in backward.
__device__ __forceinline__ void norm_blame(int c, double first, double second, const float* kept, float* factors, i64 rows,
                                           int C, float* gamma_grad, float* beta_grad, int add_params) {
    double scale = kept[2 * C + c], inverse = kept[C + c];
    if (gamma_grad) gamma_grad[c] = (add_params ? gamma_grad[c] : 0.0f) + (float)(second * inverse);
    if (beta_grad) beta_grad[c] = (add_params ? beta_grad[c] : 0.0f) + (float)first;
    factors[c] = (float)(-scale * inverse * inverse * second / rows);
    factors[C + c] = (float)(-scale * first / rows);
}

// Gradients of gamma and beta, and the factors. The output's gradient is the sum of dy
// and, where there is one, more. Where the output is given, it decides what passes, and that is left in `passed`.
template <int V>
__device__ void norm_sums(const T* x, const T* y, const T* dy, const T* more, T* passed, const float* kept,
                          float* factors, i64 rows, int C, int P, float low, float high, float* gamma_grad,
                          float* beta_grad, int add_params, float* parts, unsigned* counters) {
    Rows r = rows_of<V>(rows);
    float a[V], b[V], mean[V], scale[V], shift[V];
#pragma unroll
    for (int i = 0; i < V; i++) a[i] = b[i] = 0;
    if (r.c < C) {
#pragma unroll
        for (int i = 0; i < V; i++) {
            mean[i] = kept[r.c + i];
            scale[i] = kept[2 * C + r.c + i];
            shift[i] = kept[3 * C + r.c + i];
        }
        i64 step = (i64)gridDim.y * blockDim.y;
        for (i64 row = (i64)blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += 2 * step) {
            Pack<V> v[2], g[2], out[2], rest[2];
#pragma unroll
            for (int u = 0; u < 2; u++)
                if (row + u * step < rows) {
                    i64 at = place(rows - 1 - row - u * step, r.c, C, P);
                    v[u] = *(const Pack<V>*)(x + at);
                    g[u] = *(const Pack<V>*)(dy + at);
                    if (more) rest[u] = *(const Pack<V>*)(more + at);
                    if (y) out[u] = *(const Pack<V>*)(y + at);
                }
#pragma unroll
            for (int u = 0; u < 2; u++)
                if (row + u * step < rows) {
#pragma unroll
                    for (int i = 0; i < V; i++) {
                        float value = lift(v[u].v[i]), grad = lift(g[u].v[i]);
                        if (more) grad += lift(rest[u].v[i]);
                        float probe = y ? lift(out[u].v[i]) : value * scale[i] + shift[i];
                        grad = probe > low && probe < high ? grad : 0.0f;
                        a[i] += grad;
                        b[i] += grad * (value - mean[i]);
                        g[u].v[i] = lower(grad);
                    }
                    if (passed) *(Pack<V>*)(passed + place(rows - 1 - row - u * step, r.c, C, P)) = g[u];
                }
        }
    }
    fold<V>(a, b);
    if (!leave<V>(a, b, C, parts, counters)) return;
    total<V>(C, parts, [&](int c, double first, double second) {
        norm_blame(c, first, second, kept, factors, rows, C, gamma_grad, beta_grad, add_params);
    });
}

template <bool Y, bool MORE>
__device__ __forceinline__ void norm_sums_flow(const T* x, const T* y, const T* dy, const T* more, T* passed,
                                               const float* kept, float* a, float* b, i64 rows, int C, int c, float low,
                                               float high) {
    const int N = 2 + Y + MORE;
    float mean[VEC], scale[VEC], shift[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        mean[i] = kept[c + i];
        scale[i] = kept[2 * C + c + i];
        shift[i] = kept[3 * C + c + i];
    }
    Flow<N> flow(rows, C, c, true);
    flow.from[0] = x;
    flow.from[1] = dy;
    if (MORE) flow.from[2] = more;
    if (Y) flow.from[N - 1] = y;
    flow.run([&](Pack<VEC>* v, i64 at) {
        float value[VEC], grad[VEC], rest[VEC], out[VEC];
        lift(v[0], value);
        lift(v[1], grad);
        if (MORE) lift(v[2], rest);
        if (Y) lift(v[N - 1], out);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            if (MORE) grad[i] += rest[i];
            float probe = Y ? out[i] : value[i] * scale[i] + shift[i];
            grad[i] = probe > low && probe < high ? grad[i] : 0.0f;
            a[i] += grad[i];
            b[i] += grad[i] * (value[i] - mean[i]);
        }
        if (passed) put<VEC>(passed + at, grad);
    });
}

extern "C" __global__ void __launch_bounds__(256, 2)
    norm_sums_v(const T* x, const T* y, const T* dy, const T* more, T* passed, const float* kept, float* factors, i64 rows,
                int C, int P, float low, float high, float* gamma_grad, float* beta_grad, int add_params, float* parts,
                unsigned* counters) {
    ENTER;
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    float a[VEC], b[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i++) a[i] = b[i] = 0;
    if (c < C) {
        if (y && more)
            norm_sums_flow<true, true>(x, y, dy, more, passed, kept, a, b, rows, C, c, low, high);
        else if (y)
            norm_sums_flow<true, false>(x, y, dy, more, passed, kept, a, b, rows, C, c, low, high);
        else if (more)
            norm_sums_flow<false, true>(x, y, dy, more, passed, kept, a, b, rows, C, c, low, high);
        else
            norm_sums_flow<false, false>(x, y, dy, more, passed, kept, a, b, rows, C, c, low, high);
    }
    __syncthreads();
    fold<VEC>(a, b);
    if (!leave<VEC>(a, b, C, parts, counters)) return;
    total<VEC>(C, parts, [&](int c, double first, double second) {
        norm_blame(c, first, second, kept, factors, rows, C, gamma_grad, beta_grad, add_params);
    });
}

extern "C" __global__ void __launch_bounds__(256, 2)
    norm_input_v(const T* x, int bounded, const T* dy, T* dx, const float* kept, const float* factors, i64 rows, int C, int P,
                 float low, float high) {
    ENTER;
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (c >= C) return;
    float scale[VEC], shift[VEC], slope[VEC], constant[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        scale[i] = kept[2 * C + c + i];
        shift[i] = kept[3 * C + c + i];
        slope[i] = __ldcg(factors + c + i);
        constant[i] = __ldcg(factors + C + c + i) - kept[c + i] * slope[i];
    }
    Flow<2> flow(rows, C, c, false);
    flow.from[0] = x;
    flow.from[1] = dy;
    flow.run([&](Pack<VEC>* v, i64 at) {
        float value[VEC], grad[VEC];
        lift(v[0], value);
        lift(v[1], grad);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            float probe = value[i] * scale[i] + shift[i];
            grad[i] = bounded || (probe > low && probe < high) ? grad[i] : 0.0f;
            grad[i] = grad[i] * scale[i] + value[i] * slope[i] + constant[i];
        }
        put<VEC>(dx + at, grad);
    });
}

extern "C" __global__ void __launch_bounds__(256, 2)
    norm_sums_1(const T* x, const T* y, const T* dy, const T* more, T* passed, const float* kept, float* factors, i64 rows,
                int C, int P, float low, float high, float* gamma_grad, float* beta_grad, int add_params, float* parts,
                unsigned* counters) {
    ENTER;
    norm_sums<1>(x, y, dy, more, passed, kept, factors, rows, C, P, low, high, gamma_grad, beta_grad, add_params, parts,
                 counters);
}

extern "C" __global__ void __launch_bounds__(256, 2)
    norm_input_1(const T* x, int bounded, const T* dy, T* dx, const float* kept, const float* factors, i64 rows, int C, int P,
                 float low, float high) {
    ENTER;
    norm_input<1>(x, bounded != 0, dy, dx, kept, factors, rows, C, P, low, high);
}

// ---- batch norm of few rows -----------------------------------------------------------------------------------------

// A cluster of blocks holds all rows of its channels in registers: each is read once. Blocks share their sums through each
// other's shared memory.

#define HELD 4

__device__ __forceinline__ unsigned cluster_rank() {
    unsigned r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

__device__ __forceinline__ unsigned cluster_size() {
    unsigned r;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(r));
    return r;
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ float peer(const float* mine, unsigned rank) {
    unsigned at = (unsigned)__cvta_generic_to_shared(mine), there;
    float value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there));
    return value;
}

// Adds up both sums of each channel over the cluster, in the order of its blocks: calls done(c, lane, first, second) in one
// thread a channel. Its shared memory holds 2 * width sums, then what `done` leaves for the block, from `left` on.
template <int V, class Done> __device__ void gather(float* a, float* b, int C, Done done) {
    extern __shared__ __align__(16) float shared[];
    fold<V>(a, b);
    int width = blockDim.x * V, threads = blockDim.x * blockDim.y, me = threadIdx.y * blockDim.x + threadIdx.x;
    if (threadIdx.y == 0)
#pragma unroll
        for (int i = 0; i < V; i++) {
            shared[threadIdx.x * V + i] = a[i];
            shared[width + threadIdx.x * V + i] = b[i];
        }
    unsigned ranks = cluster_size();
    if (ranks > 1)
        cluster_sync();
    else
        __syncthreads();
    for (int lane = me; lane < width; lane += threads) {
        int c = blockIdx.x * width + lane;
        double first = 0, second = 0;
        for (unsigned rank = 0; rank < ranks; rank++) {
            first += peer(shared + lane, rank);
            second += peer(shared + width + lane, rank);
        }
        if (c < C) done(c, lane, first, second);
    }
    if (ranks > 1)
        cluster_sync();
    else
        __syncthreads();
}

template <int V>
__device__ void norm_once(const T* x, const T* residual, T* y, float* kept, i64 rows, int C, int P, float low, float high,
                          const float* gamma, const float* beta, const float* bias, float* moving_mean,
                          float* moving_variance, float epsilon, float correction, double momentum,
                          const Control* control) {
    extern __shared__ __align__(16) float shared[];
    Rows r = rows_of<V>(rows);
    Pack<V> held[HELD];
    float a[V], b[V], pivot[V];
    bool mine = r.c < C;
#pragma unroll
    for (int i = 0; i < V; i++) a[i] = b[i] = 0;
    if (mine) {
        get<V>(x + place(0, r.c, C, P), pivot);
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            i64 row = r.first + k * blockDim.y;
            if (row < r.last) held[k] = *(const Pack<V>*)(x + place(row, r.c, C, P));
        }
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (r.first + k * blockDim.y < r.last)
#pragma unroll
                for (int i = 0; i < V; i++) {
                    float d = lift(held[k].v[i]) - pivot[i];
                    a[i] += d;
                    b[i] += d * d;
                }
    }
    int width = blockDim.x * V;
    float* left = shared + 2 * width;
    gather<V>(a, b, C, [&](int c, int lane, double first, double second) {
        double mean = first / rows, variance = second / rows - mean * mean;
        variance = variance < 0 ? 0 : variance;
        mean += lift(x[place(0, c, C, P)]);
        float inverse = (float)(1 / sqrt(variance + (double)epsilon));
        float scale = inverse * (gamma ? gamma[c] : 1.0f);
        float shift = (beta ? beta[c] : 0.0f) - (float)mean * scale;
        left[lane] = scale;
        left[width + lane] = shift;
        if (cluster_rank() != 0) return;
        kept[c] = (float)mean;
        kept[C + c] = inverse;
        kept[2 * C + c] = scale;
        kept[3 * C + c] = shift;
        double seen = (float)(mean + (bias ? bias[c] : 0.0f)), keep = fmin(momentum, control->keep);
        moving_mean[c] = (float)(keep * moving_mean[c] + (1 - keep) * seen);
        moving_variance[c] = (float)(keep * moving_variance[c] + (1 - keep) * variance * correction);
    });
    if (!mine) return;
    int lane = threadIdx.x * V;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        i64 row = r.first + k * blockDim.y;
        if (row >= r.last) break;
        i64 at = place(row, r.c, C, P);
        float v[V], w[V];
        if (residual) get<V>(residual + at, w);
#pragma unroll
        for (int i = 0; i < V; i++) {
            float value = lift(held[k].v[i]) * left[lane + i] + left[width + lane + i];
            v[i] = bound(residual ? value + w[i] : value, low, high);
        }
        put<V>(y + at, v);
    }
}
BOTH(norm_once,
     (const T* x, const T* residual, T* y, float* kept, i64 rows, int C, int P, float low, float high,
      const float* gamma, const float* beta, const float* bias, float* moving_mean, float* moving_variance,
      float epsilon, float correction, double momentum, const Control* control),
     (x, residual, y, kept, rows, C, P, low, high, gamma, beta, bias, moving_mean, moving_variance, epsilon, correction,
      momentum, control))

template <int V>
__device__ void norm_back_once(const T* x, const T* y, const T* dy, const T* more, T* passed, T* dx, const float* kept,
                               i64 rows, int C, int P, float low, float high, float* gamma_grad, float* beta_grad,
                               int add_params) {
    extern __shared__ __align__(16) float shared[];
    Rows r = rows_of<V>(rows);
    Pack<V> held[HELD], grads[HELD];
    float a[V], b[V];
    bool mine = r.c < C;
#pragma unroll
    for (int i = 0; i < V; i++) a[i] = b[i] = 0;
    if (mine) {
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            i64 row = r.first + k * blockDim.y;
            if (row >= r.last) continue;
            i64 at = place(row, r.c, C, P);
            held[k] = *(const Pack<V>*)(x + at);
            grads[k] = *(const Pack<V>*)(dy + at);
        }
        float mean[V], scale[V], shift[V];
#pragma unroll
        for (int i = 0; i < V; i++) {
            mean[i] = kept[r.c + i];
            scale[i] = kept[2 * C + r.c + i];
            shift[i] = kept[3 * C + r.c + i];
        }
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            i64 row = r.first + k * blockDim.y;
            if (row >= r.last) continue;
            i64 at = place(row, r.c, C, P);
            Pack<V> out, rest;
            if (y) out = *(const Pack<V>*)(y + at);
            if (more) rest = *(const Pack<V>*)(more + at);
#pragma unroll
            for (int i = 0; i < V; i++) {
                float value = lift(held[k].v[i]), g = lift(grads[k].v[i]);
                if (more) g += lift(rest.v[i]);
                float probe = y ? lift(out.v[i]) : value * scale[i] + shift[i];
                g = probe > low && probe < high ? g : 0.0f;
                grads[k].v[i] = lower(g);
                a[i] += g;
                b[i] += g * (value - mean[i]);
            }
            if (passed) *(Pack<V>*)(passed + at) = grads[k];
        }
    }
    int width = blockDim.x * V;
    float* left = shared + 2 * width;
    gather<V>(a, b, C, [&](int c, int lane, double first, double second) {
        double scale = kept[2 * C + c], inverse = kept[C + c];
        double slope = -scale * inverse * inverse * second / rows;
        left[lane] = (float)scale;
        left[width + lane] = (float)slope;
        left[2 * width + lane] = (float)(-scale * first / rows - kept[c] * slope);
        if (cluster_rank() != 0) return;
        if (gamma_grad) gamma_grad[c] = (add_params ? gamma_grad[c] : 0.0f) + (float)(second * inverse);
        if (beta_grad) beta_grad[c] = (add_params ? beta_grad[c] : 0.0f) + (float)first;
    });
    if (!mine) return;
    int lane = threadIdx.x * V;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        i64 row = r.first + k * blockDim.y;
        if (row >= r.last) break;
        float v[V];
#pragma unroll
        for (int i = 0; i < V; i++)
            v[i] = lift(grads[k].v[i]) * left[lane + i] + lift(held[k].v[i]) * left[width + lane + i] +
                   left[2 * width + lane + i];
        put<V>(dx + place(row, r.c, C, P), v);
    }
}
BOTH(norm_back_once,
     (const T* x, const T* y, const T* dy, const T* more, T* passed, T* dx, const float* kept, i64 rows, int C, int P,
      float low, float high, float* gamma_grad, float* beta_grad, int add_params),
     (x, y, dy, more, passed, dx, kept, rows, C, P, low, high, gamma_grad, beta_grad, add_params))

// ---- biases and bounds ----------------------------------------------------------------------------------------------

// y = bound(y + bias)
template <int V> __device__ void bias_apply(T* y, const float* bias, i64 rows, int C, int P, float low, float high) {
    Rows r = rows_of<V>(rows);
    if (r.c >= C) return;
    float b[V];
#pragma unroll
    for (int i = 0; i < V; i++) b[i] = bias ? bias[r.c + i] : 0.0f;
    for (i64 row = r.first; row < r.last; row += blockDim.y) {
        i64 at = place(row, r.c, C, P);
        float v[V];
        get<V>(y + at, v);
#pragma unroll
        for (int i = 0; i < V; i++) v[i] = bound(v[i] + b[i], low, high);
        put<V>(y + at, v);
    }
}
BOTH(bias_apply, (T* y, const float* bias, i64 rows, int C, int P, float low, float high),
     (y, bias, rows, C, P, low, high))

// Bounds the gradient in place where an output is given, and adds it up.
template <int V>
__device__ void bias_sums(const T* y, T* dy, i64 rows, int C, int P, float low, float high, float* bias_grad,
                          int add_params, float* parts, unsigned* counters) {
    Rows r = rows_of<V>(rows);
    float a[V], b[V];
#pragma unroll
    for (int i = 0; i < V; i++) a[i] = b[i] = 0;
    if (r.c < C)
        for (i64 row = r.first; row < r.last; row += blockDim.y) {
            i64 at = place(row, r.c, C, P);
            float g[V], out[V];
            get<V>(dy + at, g);
            if (y) {
                get<V>(y + at, out);
#pragma unroll
                for (int i = 0; i < V; i++) g[i] = out[i] > low && out[i] < high ? g[i] : 0.0f;
                put<V>(dy + at, g);
            }
#pragma unroll
            for (int i = 0; i < V; i++) a[i] += g[i];
        }
    if (!bias_grad) return;
    fold<V>(a, b);
    if (!leave<V>(a, b, C, parts, counters)) return;
    total<V>(C, parts, [&](int c, double first, double) {
        bias_grad[c] = (add_params ? bias_grad[c] : 0.0f) + (float)first;
    });
}
BOTH(bias_sums,
     (const T* y, T* dy, i64 rows, int C, int P, float low, float high, float* bias_grad, int add_params, float* parts,
      unsigned* counters),
     (y, dy, rows, C, P, low, high, bias_grad, add_params, parts, counters))

// ---- sweeps over values where they lie ------------------------------------------------------------------------------

enum { COPY, SUM, BOUND, UNBOUND };

// COPY: out = a. SUM: out = a + b. BOUND: out = bound(a). UNBOUND: out = a where b is within the bounds.
template <int V> __device__ void sweep(int kind, const T* a, const T* b, T* out, i64 count, float low, float high) {
    for (i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * V; at < count; at += (i64)gridDim.x * blockDim.x * V) {
        float v[V], w[V];
        get<V>(a + at, v);
        if (kind == SUM || kind == UNBOUND) get<V>(b + at, w);
#pragma unroll
        for (int i = 0; i < V; i++) {
            if (kind == SUM) v[i] += w[i];
            if (kind == BOUND) v[i] = bound(v[i], low, high);
            if (kind == UNBOUND) v[i] = w[i] > low && w[i] < high ? v[i] : 0.0f;
        }
        put<V>(out + at, v);
    }
}
BOTH(sweep, (int kind, const T* a, const T* b, T* out, i64 count, float low, float high),
     (kind, a, b, out, count, low, high))

// Stretches of `len` values, each so many values after the last.
template <int V>
__device__ void stretch(const T* from, i64 from_step, T* to, i64 to_step, i64 len, i64 stretches) {
    i64 count = len / V * stretches;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x) {
        i64 row = i / (len / V), at = i % (len / V) * V;
        *(Pack<V>*)(to + row * to_step + at) = *(const Pack<V>*)(from + row * from_step + at);
    }
}
BOTH(stretch, (const T* from, i64 from_step, T* to, i64 to_step, i64 len, i64 stretches),
     (from, from_step, to, to_step, len, stretches))

// Copies an inner map into an outer one with zeros around it, or out of it again.
template <int V>
__device__ void pad(const T* from, T* to, int batch, int h, int w, int C, int H, int W, int top, int left, int nchw, int out) {
    int mh = out ? h : H, mw = out ? w : W, cs = C / V;
    i64 count = (i64)batch * cs * mh * mw;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x) {
        int c, y, x, n;
        if (nchw) {
            unsigned rest = (unsigned)(i / mw);
            x = i % mw, y = rest % mh, c = rest / mh % C, n = rest / mh / C;
        } else {
            unsigned rest = (unsigned)(i / cs);
            c = (int)(i % cs) * V, x = rest % mw, rest /= mw;
            y = rest % mh, n = rest / mh;
        }
        int iy = out ? y : y - top, ix = out ? x : x - left;
        bool inside = iy >= 0 && iy < h && ix >= 0 && ix < w;
        i64 inner = nchw ? (((i64)n * C + c) * h + iy) * w + ix : (((i64)n * h + iy) * w + ix) * C + c;
        i64 outer = nchw ? (((i64)n * C + c) * H + iy + top) * W + ix + left
                         : (((i64)n * H + iy + top) * W + ix + left) * C + c;
        Pack<V> v;
#pragma unroll
        for (int j = 0; j < V; j++) v.v[j] = lower(0.0f);
        if (out)
            v = *(const Pack<V>*)(from + outer);
        else if (inside)
            v = *(const Pack<V>*)(from + inner);
        *(Pack<V>*)(to + i * V) = v;
    }
}
BOTH(pad, (const T* from, T* to, int batch, int h, int w, int C, int H, int W, int top, int left, int nchw, int out),
     (from, to, batch, h, w, C, H, W, top, left, nchw, out))

// Between planes and rows of one sample: vector[(pixel, channel)] and map[(channel, pixel)].
extern "C" __global__ void turn(const T* from, T* to, int batch, int pixels, int C, int back) {
    ENTER;
    i64 count = (i64)batch * pixels * C;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x) {
        i64 n = i / ((i64)pixels * C), rest = i % ((i64)pixels * C);
        i64 map = n * pixels * C + rest % C * pixels + rest / C;
        to[back ? map : i] = from[back ? i : map];
    }
}

// ---- input ----------------------------------------------------------------------------------------------------------

// Images as the host gives them, [sample][pixel][channel] in fp32, as the engine keeps them: rounded, in its layout, with
// channels of zeros up to `wide`.
extern "C" __global__ void prepare(const float* from, T* to, i64 samples, int pixels, int C, int wide, int nchw) {
    ENTER;
    if (!nchw && wide == VEC) {
        // A pixel a thread.
        for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < samples * pixels; i += (i64)gridDim.x * blockDim.x) {
            float v[VEC];
#pragma unroll
            for (int c = 0; c < VEC; c++) v[c] = c < C ? from[i * C + c] : 0.0f;
            put<VEC>(to + i * VEC, v);
        }
        return;
    }
    i64 count = samples * pixels * wide;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x) {
        if (nchw) {
            i64 n = i / ((i64)pixels * C);
            int c = i / pixels % C, p = i % pixels;
            to[i] = lower(from[(n * pixels + p) * C + c]);
        } else {
            int c = i % wide;
            to[i] = lower(c < C ? from[i / wide * C + c] : 0.0f);
        }
    }
}

// Fills with numbers in [-1, 1), for measuring.
extern "C" __global__ void noise(T* to, i64 count) {
    ENTER;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x) {
        unsigned z = (unsigned)i * 2654435761u;
        z = (z ^ (z >> 15)) * 2246822519u;
        to[i] = lower((float)(z >> 8) / 8388608.0f - 1.0f);
    }
}

// Values as fp32, in the order [sample][pixel][channel].
extern "C" __global__ void reveal(const T* from, float* to, i64 samples, int pixels, int C, int nchw) {
    ENTER;
    i64 count = samples * pixels * C;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x) {
        i64 n = i / ((i64)pixels * C), rest = i % ((i64)pixels * C);
        to[i] = lift(from[nchw ? n * pixels * C + rest % C * pixels + rest / C : i]);
    }
}

// ---- windows --------------------------------------------------------------------------------------------------------

struct Window {
    int batch, C, nchw;
    int h, w, H, W; // input and output
    int kh, kw, sh, sw, top, left;
};

template <int V> struct Spot {
    int n, y, x, c;
};

// The V values of a map of height mh and width mw that have number i.
template <int V> __device__ __forceinline__ Spot<V> spot(const Window& k, i64 i, int mh, int mw) {
    Spot<V> s;
    if (k.nchw) {
        s.x = i % mw, s.y = i / mw % mh, s.c = i / mw / mh % k.C, s.n = i / mw / mh / k.C;
    } else {
        int cs = k.C / V;
        unsigned rest = (unsigned)(i / cs);
        s.c = (int)(i % cs) * V;
        s.x = rest % mw, rest /= mw;
        s.y = rest % mh, s.n = rest / mh;
    }
    return s;
}

template <int V> __device__ __forceinline__ i64 address(const Window& k, const Spot<V>& s, int y, int x, int mh, int mw) {
    return k.nchw ? (((i64)s.n * k.C + s.c) * mh + y) * mw + x : (((i64)s.n * mh + y) * mw + x) * k.C + s.c;
}

#define EACH(i, count) for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < (count); i += (i64)gridDim.x * blockDim.x)

template <int V> struct alignas(V) Bytes { unsigned char v[V]; };

template <int V> __device__ void max_pool(Window k, const T* x, T* y, unsigned char* winners) {
    EACH(i, (i64)k.batch * k.H * k.W * k.C / V) {
        Spot<V> s = spot<V>(k, i, k.H, k.W);
        float top[V];
        unsigned char winner[V];
#pragma unroll
        for (int j = 0; j < V; j++) top[j] = __int_as_float(0xff800000), winner[j] = 255;
        for (int r = 0; r < k.kh; r++)
            for (int q = 0; q < k.kw; q++) {
                int iy = s.y * k.sh - k.top + r, ix = s.x * k.sw - k.left + q;
                if (iy < 0 || iy >= k.h || ix < 0 || ix >= k.w) continue;
                float v[V];
                get<V>(x + address<V>(k, s, iy, ix, k.h, k.w), v);
#pragma unroll
                for (int j = 0; j < V; j++)
                    if (v[j] > top[j] || winner[j] == 255) top[j] = v[j], winner[j] = r * k.kw + q;
            }
        i64 at = address<V>(k, s, s.y, s.x, k.H, k.W);
        put<V>(y + at, top);
        Bytes<V> bytes;
#pragma unroll
        for (int j = 0; j < V; j++) bytes.v[j] = winner[j];
        *(Bytes<V>*)(winners + at) = bytes;
    }
}
BOTH(max_pool, (Window k, const T* x, T* y, unsigned char* winners), (k, x, y, winners))

__device__ __forceinline__ int covered(int at, int stride, int border, int kernel, int side) {
    int first = max(at * stride - border, 0), last = min(at * stride - border + kernel, side);
    return last - first;
}

template <int V> __device__ void avg_pool(Window k, const T* x, T* y) {
    EACH(i, (i64)k.batch * k.H * k.W * k.C / V) {
        Spot<V> s = spot<V>(k, i, k.H, k.W);
        float sum[V], v[V];
#pragma unroll
        for (int j = 0; j < V; j++) sum[j] = 0;
        for (int r = 0; r < k.kh; r++)
            for (int q = 0; q < k.kw; q++) {
                int iy = s.y * k.sh - k.top + r, ix = s.x * k.sw - k.left + q;
                if (iy < 0 || iy >= k.h || ix < 0 || ix >= k.w) continue;
                get<V>(x + address<V>(k, s, iy, ix, k.h, k.w), v);
#pragma unroll
                for (int j = 0; j < V; j++) sum[j] += v[j];
            }
        float fraction = 1.0f / (covered(s.y, k.sh, k.top, k.kh, k.h) * covered(s.x, k.sw, k.left, k.kw, k.w));
#pragma unroll
        for (int j = 0; j < V; j++) sum[j] *= fraction;
        put<V>(y + address<V>(k, s, s.y, s.x, k.H, k.W), sum);
    }
}
BOTH(avg_pool, (Window k, const T* x, T* y), (k, x, y))

// Gradient of the input of a pool: from winners where there are any, else from fractions.
template <int V> __device__ void pool_back(Window k, const T* dy, const unsigned char* winners, T* dx) {
    EACH(i, (i64)k.batch * k.h * k.w * k.C / V) {
        Spot<V> s = spot<V>(k, i, k.h, k.w);
        float sum[V], v[V];
#pragma unroll
        for (int j = 0; j < V; j++) sum[j] = 0;
        // The windows that cover this place.
        int y0 = s.y + k.top, x0 = s.x + k.left;
        int first_y = max(0, y0 - k.kh + k.sh) / k.sh, last_y = min(y0 / k.sh, k.H - 1);
        int first_x = max(0, x0 - k.kw + k.sw) / k.sw, last_x = min(x0 / k.sw, k.W - 1);
        for (int oy = first_y; oy <= last_y; oy++)
            for (int ox = first_x; ox <= last_x; ox++) {
                int tap = (y0 - oy * k.sh) * k.kw + x0 - ox * k.sw;
                i64 at = address<V>(k, s, oy, ox, k.H, k.W);
                get<V>(dy + at, v);
                if (winners) {
                    Bytes<V> won = *(const Bytes<V>*)(winners + at);
#pragma unroll
                    for (int j = 0; j < V; j++)
                        if (won.v[j] == tap) sum[j] += v[j];
                } else {
                    float fraction = 1.0f / (covered(oy, k.sh, k.top, k.kh, k.h) * covered(ox, k.sw, k.left, k.kw, k.w));
#pragma unroll
                    for (int j = 0; j < V; j++) sum[j] += v[j] * fraction;
                }
            }
        i64 at = address<V>(k, s, s.y, s.x, k.h, k.w);
        put<V>(dx + at, sum);
    }
}
BOTH(pool_back, (Window k, const T* dy, const unsigned char* winners, T* dx), (k, dy, winners, dx))

// Windows in NHWC written out: a row of taps and channels for each output, zeros beyond the border.
extern "C" __global__ void unroll(Window k, const T* x, T* rows) {
    ENTER;
    unsigned cs = k.C / VEC, taps = k.kh * k.kw;
    EACH(i, (i64)k.batch * k.H * k.W * taps * cs) {
        unsigned rest = (unsigned)i / cs, c = (unsigned)i % cs * VEC, tap = rest % taps;
        rest /= taps;
        int ox = rest % k.W, oy = rest / k.W % k.H, n = rest / k.W / k.H;
        int iy = oy * k.sh - k.top + (int)tap / k.kw, ix = ox * k.sw - k.left + (int)tap % k.kw;
        Pack<VEC> v;
#pragma unroll
        for (int j = 0; j < VEC; j++) v.v[j] = lower(0.0f);
        if (iy >= 0 && iy < k.h && ix >= 0 && ix < k.w) v = *(const Pack<VEC>*)(x + (((i64)n * k.h + iy) * k.w + ix) * k.C + c);
        *(Pack<VEC>*)(rows + i * VEC) = v;
    }
}

// The other way round: each place gets the sum of what was written out of it.
extern "C" __global__ void roll(Window k, const T* rows, T* x) {
    ENTER;
    unsigned cs = k.C / VEC, taps = k.kh * k.kw;
    EACH(i, (i64)k.batch * k.h * k.w * cs) {
        unsigned rest = (unsigned)(i / cs), c = (unsigned)(i % cs) * VEC;
        int ix = rest % k.w, iy = rest / k.w % k.h, n = rest / k.w / k.h;
        float sum[VEC], v[VEC];
#pragma unroll
        for (int j = 0; j < VEC; j++) sum[j] = 0;
        for (int r = 0; r < k.kh; r++) {
            int y = iy + k.top - r;
            if (y < 0 || y % k.sh || y / k.sh >= k.H) continue;
            for (int q = 0; q < k.kw; q++) {
                int across = ix + k.left - q;
                if (across < 0 || across % k.sw || across / k.sw >= k.W) continue;
                i64 row = ((i64)n * k.H + y / k.sh) * k.W + across / k.sw;
                get<VEC>(rows + (row * taps + r * k.kw + q) * k.C + c, v);
#pragma unroll
                for (int j = 0; j < VEC; j++) sum[j] += v[j];
            }
        }
        put<VEC>(x + i * VEC, sum);
    }
}

// Backward of a 3x3 window with stride 2 in NHWC. A thread computes the four places that the same outputs reach, from the
// border's edge on: `part(source, tap, j)` is what output (a, b), (a, b - 1), (a - 1, b) or (a - 1, b - 1) gives by a tap.
struct Four {
    int n, a, b, c;
};

__device__ __forceinline__ Four four(const Window& k, i64 i, int high, int wide) {
    int cs = k.C / VEC;
    unsigned rest = (unsigned)(i / cs);
    Four f;
    f.c = (int)(i % cs) * VEC, f.b = rest % wide;
    rest /= wide;
    f.a = rest % high, f.n = rest / high;
    return f;
}

template <class Part> __device__ __forceinline__ void spread_four(const Window& k, const Four& f, T* dx, Part part) {
    float out[4][VEC];
#pragma unroll
    for (int t = 0; t < 9; t++) {
        const int r = t / 3, q = t % 3, place = (r & 1) * 2 + (q & 1), source = (r == 2) * 2 + (q == 2);
#pragma unroll
        for (int j = 0; j < VEC; j++) out[place][j] = source == 0 ? part(source, t, j) : out[place][j] + part(source, t, j);
    }
#pragma unroll
    for (int t = 0; t < 4; t++) {
        int iy = 2 * f.a + t / 2 - k.top, ix = 2 * f.b + t % 2 - k.left;
        if (iy >= 0 && iy < k.h && ix >= 0 && ix < k.w)
            put<VEC>(dx + (((i64)f.n * k.h + iy) * k.w + ix) * k.C + f.c, out[t]);
    }
}

// Where the gradient of one of the four outputs lies; -1 beyond the border.
__device__ __forceinline__ i64 source_of(const Window& k, const Four& f, int source) {
    int oy = f.a - source / 2, ox = f.b - source % 2;
    return oy >= 0 && oy < k.H && ox >= 0 && ox < k.W ? (((i64)f.n * k.H + oy) * k.W + ox) * k.C + f.c : -1;
}

extern "C" __global__ void __launch_bounds__(256)
    pool_three_back_by_2(Window k, const T* dy, const unsigned char* winners, T* dx) {
    ENTER;
    int high = (k.h + k.top + 1) / 2, wide = (k.w + k.left + 1) / 2;
    EACH(i, (i64)k.batch * high * wide * (k.C / VEC)) {
        Four f = four(k, i, high, wide);
        Pack<VEC> g[4];
        Bytes<VEC> won[4];
#pragma unroll
        for (int s = 0; s < 4; s++) {
            i64 at = source_of(k, f, s);
            if (at >= 0) g[s] = *(const Pack<VEC>*)(dy + at), won[s] = *(const Bytes<VEC>*)(winners + at);
#pragma unroll
            for (int j = 0; j < VEC; j++)
                if (at < 0) won[s].v[j] = 255;
        }
        spread_four(k, f, dx, [&](int s, int tap, int j) { return won[s].v[j] == tap ? lift(g[s].v[j]) : 0.0f; });
    }
}

// Weights are [kh][kw][C] in fp32.
template <int V> __device__ void depthwise(Window k, const T* x, const float* weights, T* y) {
    EACH(i, (i64)k.batch * k.H * k.W * k.C / V) {
        Spot<V> s = spot<V>(k, i, k.H, k.W);
        float sum[V], v[V];
#pragma unroll
        for (int j = 0; j < V; j++) sum[j] = 0;
        for (int r = 0; r < k.kh; r++)
#pragma unroll 3
            for (int q = 0; q < k.kw; q++) {
                int iy = s.y * k.sh - k.top + r, ix = s.x * k.sw - k.left + q;
                if (iy < 0 || iy >= k.h || ix < 0 || ix >= k.w) continue;
                get<V>(x + address<V>(k, s, iy, ix, k.h, k.w), v);
                const float* w = weights + (r * k.kw + q) * k.C + s.c;
#pragma unroll
                for (int j = 0; j < V; j++) sum[j] += v[j] * __ldg(w + j);
            }
        put<V>(y + address<V>(k, s, s.y, s.x, k.H, k.W), sum);
    }
}
BOTH(depthwise, (Window k, const T* x, const float* weights, T* y), (k, x, weights, y))

template <int V> __device__ void depthwise_back(Window k, const T* dy, const float* weights, T* dx) {
    EACH(i, (i64)k.batch * k.h * k.w * k.C / V) {
        Spot<V> s = spot<V>(k, i, k.h, k.w);
        float sum[V], v[V];
#pragma unroll
        for (int j = 0; j < V; j++) sum[j] = 0;
        for (int r = 0; r < k.kh; r++)
#pragma unroll 3
            for (int q = 0; q < k.kw; q++) {
                int oy = s.y + k.top - r, ox = s.x + k.left - q;
                if (oy < 0 || ox < 0) continue;
                if (k.sh == 2 ? oy & 1 : k.sh > 2 && oy % k.sh) continue;
                if (k.sw == 2 ? ox & 1 : k.sw > 2 && ox % k.sw) continue;
                oy = k.sh == 1 ? oy : k.sh == 2 ? oy >> 1 : oy / k.sh;
                ox = k.sw == 1 ? ox : k.sw == 2 ? ox >> 1 : ox / k.sw;
                if (oy >= k.H || ox >= k.W) continue;
                get<V>(dy + address<V>(k, s, oy, ox, k.H, k.W), v);
                const float* w = weights + (r * k.kw + q) * k.C + s.c;
#pragma unroll
                for (int j = 0; j < V; j++) sum[j] += v[j] * __ldg(w + j);
            }
        i64 at = address<V>(k, s, s.y, s.x, k.h, k.w);
        put<V>(dx + at, sum);
    }
}
BOTH(depthwise_back, (Window k, const T* dy, const float* weights, T* dx), (k, dy, weights, dx))

// Neighbouring fp32 values, as many as a thread has channels.
__device__ __forceinline__ void weigh(const float* at, float* out) {
#pragma unroll
    for (int i = 0; i < VEC; i += 4) {
        float4 v = __ldg((const float4*)(at + i));
        out[i] = v.x, out[i + 1] = v.y, out[i + 2] = v.z, out[i + 3] = v.w;
    }
}

// What a batch norm makes of its input, where nobody has written that out.
template <int V>
__device__ __forceinline__ void make(Pack<V>& pack, const float* scale, const float* shift, float low, float high) {
    float v[V];
    lift(pack, v);
#pragma unroll
    for (int j = 0; j < V; j++) v[j] = bound(v[j] * scale[j] + shift[j], low, high);
    pack = lower<V>(v);
}

// Depthwise windows of 3x3 in NHWC: a thread computes neighbours of a row, four with stride 1 and two with stride 2, and reads
// each input once a row. RAW: x is the input of the batch norm in front.
template <int V, int S, bool RAW>
__device__ __forceinline__ void depthwise_three(const Window& k, const T* x, const float* weights, T* y, const float* kept,
                                                float low, float high) {
    const int OUT = S == 1 ? 4 : 2, IN = (OUT - 1) * S + 3;
    int strips = (k.W + OUT - 1) / OUT, cs = k.C / V;
    EACH(i, (i64)k.batch * k.H * strips * cs) {
        unsigned rest = (unsigned)(i / cs);
        int c = (int)(i % cs) * V, x0 = rest % strips * OUT;
        rest /= strips;
        int oy = rest % k.H, n = rest / k.H;
        float scale[V], shift[V];
        if (RAW) weigh(kept + 2 * k.C + c, scale), weigh(kept + 3 * k.C + c, shift);
        float sum[OUT][V];
#pragma unroll
        for (int o = 0; o < OUT; o++)
#pragma unroll
            for (int j = 0; j < V; j++) sum[o][j] = 0;
#pragma unroll
        for (int r = 0; r < 3; r++) {
            int iy = oy * S - k.top + r;
            if (iy < 0 || iy >= k.h) continue;
            const T* row = x + ((i64)n * k.h + iy) * k.w * k.C + c;
            Pack<V> v[IN];
#pragma unroll
            for (int q = 0; q < IN; q++) {
                int ix = x0 * S - k.left + q;
                if (ix >= 0 && ix < k.w)
                    v[q] = *(const Pack<V>*)(row + (i64)ix * k.C);
                else
#pragma unroll
                    for (int j = 0; j < V; j++) v[q].v[j] = lower(0.0f);
            }
            if (RAW)
#pragma unroll
                for (int q = 0; q < IN; q++) {
                    int ix = x0 * S - k.left + q;
                    if (ix >= 0 && ix < k.w) make(v[q], scale, shift, low, high);
                }
            float w[3][V];
#pragma unroll
            for (int q = 0; q < 3; q++) weigh(weights + (r * 3 + q) * k.C + c, w[q]);
#pragma unroll
            for (int at = 0; at < IN; at++) {
                float value[V];
                lift(v[at], value);
#pragma unroll
                for (int q = 0; q < 3; q++)
                    if (at >= q && (at - q) % S == 0 && (at - q) / S < OUT)
#pragma unroll
                        for (int j = 0; j < V; j++) sum[(at - q) / S][j] += value[j] * w[q][j];
            }
        }
#pragma unroll
        for (int o = 0; o < OUT; o++)
            if (x0 + o < k.W) put<V>(y + (((i64)n * k.H + oy) * k.W + x0 + o) * k.C + c, sum[o]);
    }
}

#define DEPTHWISE_THREE(S)                                                                                           \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                             \
        depthwise_three_by_##S(Window k, const T* x, const float* weights, T* y, const float* kept, float low,       \
                               float high) {                                                                         \
        ENTER;                                                                                                       \
        if (kept)                                                                                                    \
            depthwise_three<VEC, S, true>(k, x, weights, y, kept, low, high);                                        \
        else                                                                                                         \
            depthwise_three<VEC, S, false>(k, x, weights, y, kept, low, high);                                       \
    }

DEPTHWISE_THREE(1)
DEPTHWISE_THREE(2)

// Two values on their way to shared memory; zeros where there are none.
__device__ __forceinline__ void bring(unsigned to, const T* from, bool is) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(2 * sizeof(T)),
                 "r"(is ? 2 * (int)sizeof(T) : 0)
                 : "memory");
}

// All of backward of a depthwise window of 3x3 in NHWC in one sweep, which reads each value once: the gradient of the input,
// those of the weights and, RAW, both sums of the batch norm in front, whose input x then is. A thread has two channels and
// walks along a row: with stride 1 place by place, with stride 2 four places at a time, from the border's edge on; dy of row
// a - r and column b - q reaches them. What it needs next is under way to it. Last rows first, as the layer behind has just
// written them. Each block leaves its sums among the parts.
template <int S, bool RAW>
__device__ __forceinline__ void depthwise_three_back(const Window& k, const T* x, const T* dy, const float* weights, T* dx,
                                                     float* parts, const float* kept, float low, float high) {
    const int V = 2, SIDE = S == 1 ? 3 : 2, PLACES = S * S, SUMS = RAW ? 11 : 9, DEPTH = 8, LONGEST = 64;
    struct alignas(S == 1 ? 16 : 4 * sizeof(T)) Bundle {
        Pack<V> g[SIDE], v[PLACES];
    };
    extern __shared__ __align__(16) float shared[];
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * V;
    int me = threadIdx.y * blockDim.x + threadIdx.x, width = blockDim.x * V;
    float sum[SUMS][V];
#pragma unroll
    for (int t = 0; t < SUMS; t++)
#pragma unroll
        for (int j = 0; j < V; j++) sum[t][j] = 0;
    // With stride 1, places are numbered as dy's columns are.
    int top = S == 1 ? k.top : 0, left = S == 1 ? k.left : 0;
    int high_side = S == 1 ? k.h : (k.h + k.top + 1) / 2, wide_side = S == 1 ? k.w : (k.w + k.left + 1) / 2;
    int pieces = (wide_side + LONGEST - 1) / LONGEST, lines = k.batch * high_side * pieces;
    if (c < k.C) {
        unsigned ring = (unsigned)__cvta_generic_to_shared(shared) + me * sizeof(Bundle);
        unsigned each = blockDim.x * blockDim.y * sizeof(Bundle);
        float w[9][V], mean[V], scale[V], shift[V];
#pragma unroll
        for (int t = 0; t < 9; t++)
#pragma unroll
            for (int j = 0; j < V; j++) w[t][j] = weights[t * k.C + c + j];
#pragma unroll
        for (int j = 0; j < V; j++)
            if (RAW) mean[j] = kept[c + j], scale[j] = kept[2 * k.C + c + j], shift[j] = kept[3 * k.C + c + j];
        for (int line = blockIdx.y * blockDim.y + threadIdx.y; line < lines; line += gridDim.y * blockDim.y) {
            int rest = lines - 1 - line, begin = rest % pieces * LONGEST + left;
            int end = min(begin + LONGEST, wide_side + left), a = rest / pieces % high_side + top;
            int first = begin - (SIDE - 1), ahead = first;
            // More is asked for than a line has: the next one starts anew.
            unsigned in = 0, out = 0;
            i64 n = rest / pieces / high_side;
            // Where the next values lie; what is beyond the border is not read.
            const T* g_at[SIDE];
            const T* x_at[S];
            bool row_of_g[SIDE], row_of_x[S];
#pragma unroll
            for (int r = 0; r < SIDE; r++) {
                row_of_g[r] = a - r >= 0 && a - r < k.H;
                g_at[r] = dy + ((n * k.H + a - r) * k.W + first) * k.C + c;
            }
#pragma unroll
            for (int r = 0; r < S; r++) {
                int iy = S * a - k.top + r;
                row_of_x[r] = S == 1 || (iy >= 0 && iy < k.h);
                x_at[r] = x + ((n * k.h + iy) * k.w + S * first - k.left) * k.C + c;
            }
            auto has = [&](int b, int p) {
                int ix = S * b - k.left + p % S;
                return S == 1 || (row_of_x[p / S] && ix >= 0 && ix < k.w);
            };
            auto fetch = [&] {
                if (ahead < end) {
                    bool column = ahead >= 0 && ahead < k.W;
#pragma unroll
                    for (int r = 0; r < SIDE; r++) {
                        bring(ring + in + r * sizeof(Pack<V>), g_at[r], row_of_g[r] && column);
                        g_at[r] += k.C;
                    }
#pragma unroll
                    for (int p = 0; p < PLACES; p++)
                        bring(ring + in + (SIDE + p) * sizeof(Pack<V>), x_at[p / S] + p % S * k.C,
                              ahead >= begin && has(ahead, p));
#pragma unroll
                    for (int r = 0; r < S; r++) x_at[r] += S * k.C;
                }
                asm volatile("cp.async.commit_group;" ::: "memory");
                in = in + each == DEPTH * each ? 0 : in + each;
                ahead++;
            };
            for (int i = 1; i < DEPTH; i++) fetch();
            T* dx_at = dx + ((n * k.h + S * a - k.top) * k.w + S * begin - k.left) * k.C + c;
            float window[SIDE][SIDE][V];
#pragma unroll SIDE
            for (int b = first; b < end; b++) {
                asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 2) : "memory");
                Bundle now = *(const Bundle*)__cvta_shared_to_generic(ring + out);
                out = out + each == DEPTH * each ? 0 : out + each;
                fetch();
#pragma unroll
                for (int r = 0; r < SIDE; r++) {
#pragma unroll
                    for (int q = SIDE - 1; q > 0; q--)
#pragma unroll
                        for (int j = 0; j < V; j++) window[r][q][j] = window[r][q - 1][j];
                    lift(now.g[r], window[r][0]);
                }
                if (b < begin) continue;
                float raw[PLACES][V], value[PLACES][V], grad[PLACES][V];
#pragma unroll
                for (int p = 0; p < PLACES; p++) {
                    lift(now.v[p], raw[p]);
                    if (RAW) make(now.v[p], scale, shift, low, high);
                    lift(now.v[p], value[p]);
#pragma unroll
                    for (int j = 0; j < V; j++) value[p][j] = has(b, p) ? value[p][j] : 0.0f, grad[p][j] = 0;
                }
#pragma unroll
                for (int t = 0; t < 9; t++) {
                    const int r = t / 3, q = t % 3, p = r % S * S + q % S;
#pragma unroll
                    for (int j = 0; j < V; j++) {
                        grad[p][j] += w[t][j] * window[r / S][q / S][j];
                        sum[t][j] += value[p][j] * window[r / S][q / S][j];
                    }
                }
#pragma unroll
                for (int p = 0; p < PLACES; p++) {
                    if (!has(b, p)) continue;
                    Pack<V> to = lower<V>(grad[p]);
                    *(Pack<V>*)(dx_at + (p / S * k.w + p % S) * k.C) = to;
                    if (!RAW) continue;
                    lift(to, grad[p]);
#pragma unroll
                    for (int j = 0; j < V; j++) {
                        float probe = raw[p][j] * scale[j] + shift[j];
                        float passed = probe > low && probe < high ? grad[p][j] : 0.0f;
                        sum[SUMS - 2][j] += passed;
                        sum[SUMS - 1][j] += passed * (raw[p][j] - mean[j]);
                    }
                }
                dx_at += S * k.C;
            }
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
    }
    // The block's sums: row by row of threads, in order.
    __syncthreads();
#pragma unroll
    for (int t = 0; t < SUMS; t++)
#pragma unroll
        for (int j = 0; j < V; j++) shared[(threadIdx.y * SUMS + t) * width + threadIdx.x * V + j] = sum[t][j];
    __syncthreads();
    for (int i = me; i < SUMS * width; i += blockDim.x * blockDim.y) {
        int to = blockIdx.x * width + i % width;
        float total = 0;
        for (int row = 0; row < blockDim.y; row++) total += shared[row * SUMS * width + i];
        if (to < k.C) parts[((i64)blockIdx.y * SUMS + i / width) * k.C + to] = total;
    }
}

#define DEPTHWISE_THREE_BACK(S)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                             \
        depthwise_three_back_by_##S(Window k, const T* x, const T* dy, const float* weights, T* dx, float* parts,    \
                                    const float* kept, float low, float high) {                                      \
        ENTER;                                                                                                       \
        if (kept)                                                                                                    \
            depthwise_three_back<S, true>(k, x, dy, weights, dx, parts, kept, low, high);                            \
        else                                                                                                         \
            depthwise_three_back<S, false>(k, x, dy, weights, dx, parts, kept, low, high);                           \
    }

DEPTHWISE_THREE_BACK(1)
DEPTHWISE_THREE_BACK(2)

// Totals of the parts that this leaves, in a fixed order. Blocks of 32 x 8 threads: as many as the weights need, then, where
// there is a batch norm in front, as many as its channels need.
extern "C" __global__ void depthwise_three_totals(const float* parts, int number, int C, float* grad, int add_params,
                                                  const float* kept, float* factors, i64 rows, float* gamma_grad,
                                                  float* beta_grad) {
    ENTER;
    __shared__ double sums[8][32];
    int count = 9 * C, all = kept ? count + 2 * C : count, blocks = (count + 31) / 32;
    auto total = [&](int at, bool is) {
        double sum = 0;
        if (is) {
#pragma unroll 16
            for (int part = threadIdx.y; part < number; part += 8) sum += parts[(i64)part * all + at];
        }
        __syncthreads();
        sums[threadIdx.y][threadIdx.x] = sum;
        __syncthreads();
        sum = 0;
        for (int row = 0; row < 8; row++) sum += sums[row][threadIdx.x];
        return sum;
    };
    if (blockIdx.x < blocks) {
        int at = blockIdx.x * 32 + threadIdx.x;
        double sum = total(at, at < count);
        if (threadIdx.y == 0 && at < count) grad[at] = (add_params ? grad[at] : 0.0f) + (float)sum;
    } else {
        int c = (blockIdx.x - blocks) * 32 + threadIdx.x;
        double first = total(count + c, c < C), second = total(count + C + c, c < C);
        if (threadIdx.y == 0 && c < C)
            norm_blame(c, first, second, kept, factors, rows, C, gamma_grad, beta_grad, add_params);
    }
}

// Gradient of depthwise weights. blockIdx.z is a row of taps; columns of taps go in pairs through the two sums.
template <int V>
__device__ void depthwise_sums(Window k, const T* x, const T* dy, float* grad, int add_params, float* parts,
                               unsigned* counters) {
    int pairs = (k.kw + 1) / 2, r = blockIdx.z / pairs, q = blockIdx.z % pairs * 2;
    bool two = q + 1 < k.kw;
    i64 rows = (i64)k.batch * k.H * k.W;
    Rows mine = rows_of<V>(rows);
    float a[V], b[V];
#pragma unroll
    for (int j = 0; j < V; j++) a[j] = b[j] = 0;
    if (mine.c < k.C) {
        Spot<V> s;
        s.c = mine.c;
#pragma unroll 2
        for (i64 row = mine.first; row < mine.last; row += blockDim.y) {
            unsigned at = (unsigned)row;
            s.x = at % k.W, at /= k.W;
            s.y = at % k.H, s.n = at / k.H;
            int iy = s.y * k.sh - k.top + r, ix = s.x * k.sw - k.left + q;
            if (iy < 0 || iy >= k.h) continue;
            float g[V], v[V];
            get<V>(dy + address<V>(k, s, s.y, s.x, k.H, k.W), g);
            if (ix >= 0 && ix < k.w) {
                get<V>(x + address<V>(k, s, iy, ix, k.h, k.w), v);
#pragma unroll
                for (int j = 0; j < V; j++) a[j] += g[j] * v[j];
            }
            if (two && ix + 1 >= 0 && ix + 1 < k.w) {
                get<V>(x + address<V>(k, s, iy, ix + 1, k.h, k.w), v);
#pragma unroll
                for (int j = 0; j < V; j++) b[j] += g[j] * v[j];
            }
        }
    }
    fold<V>(a, b);
    if (!leave<V>(a, b, k.C, parts + (i64)blockIdx.z * gridDim.y * 2 * k.C, counters + blockIdx.z * gridDim.x)) return;
    total<V>(k.C, parts + (i64)blockIdx.z * gridDim.y * 2 * k.C, [&](int c, double first, double second) {
        float* at = grad + (r * k.kw + q) * k.C + c;
        at[0] = (add_params ? at[0] : 0.0f) + (float)first;
        if (two) at[k.C] = (add_params ? at[k.C] : 0.0f) + (float)second;
    });
}
BOTH(depthwise_sums,
     (Window k, const T* x, const T* dy, float* grad, int add_params, float* parts, unsigned* counters),
     (k, x, dy, grad, add_params, parts, counters))

// ---- global pool ----------------------------------------------------------------------------------------------------

template <int V> __device__ void mean_pool(const T* x, T* y, int batch, int pixels, int C, int nchw) {
    EACH(i, (i64)batch * C / V) {
        i64 n = i / (C / V);
        int c = i % (C / V) * V;
        float sum[V], v[V];
#pragma unroll
        for (int j = 0; j < V; j++) sum[j] = 0;
        for (int p = 0; p < pixels; p++) {
            get<V>(x + (nchw ? (n * C + c) * pixels + p : (n * pixels + p) * C + c), v);
#pragma unroll
            for (int j = 0; j < V; j++) sum[j] += v[j];
        }
#pragma unroll
        for (int j = 0; j < V; j++) sum[j] /= pixels;
        put<V>(y + n * C + c, sum);
    }
}
BOTH(mean_pool, (const T* x, T* y, int batch, int pixels, int C, int nchw), (x, y, batch, pixels, C, nchw))

template <int V> __device__ void mean_back(const T* dy, T* dx, int batch, int pixels, int C, int nchw) {
    EACH(i, (i64)batch * pixels * C / V) {
        i64 n = i / ((i64)pixels * C / V), rest = i % ((i64)pixels * C / V) * V;
        int c = nchw ? rest / pixels : rest % C;
        float g[V];
        get<V>(dy + n * C + c, g);
#pragma unroll
        for (int j = 0; j < V; j++) g[j] /= pixels;
        put<V>(dx + n * pixels * C + rest, g);
    }
}
BOTH(mean_back, (const T* dy, T* dx, int batch, int pixels, int C, int nchw),
     (dy, dx, batch, pixels, C, nchw))

// ---- dropout --------------------------------------------------------------------------------------------------------

__device__ __forceinline__ u64 mix(u64 z) {
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

extern "C" __global__ void dropout(const T* from, T* to, i64 count, float rate, u64 seed, const Control* control) {
    ENTER;
    u64 stream = mix(seed ^ mix(control->stream));
    float scale = 1.0f / (1.0f - rate);
    EACH(i, count) {
        u64 z = mix(stream + (u64)i * 0x9E3779B97F4A7C15ull);
        bool kept = (double)(z >> 11) * (1.0 / 9007199254740992.0) >= (double)rate;
        to[i] = lower(kept ? lift(from[i]) * scale : 0.0f);
    }
}

// ---- losses ---------------------------------------------------------------------------------------------------------

// One block a sample. grad may be null. Only the first `live` samples count where live is not negative.
extern "C" __global__ void cross_entropy(const T* logits, const unsigned* labels, T* grad, int batch, int classes,
                                         float smoothing, int evaluates, const Control* control, float* losses,
                                         unsigned* counter, Score* out) {
    ENTER;
    __shared__ float tops[256];
    __shared__ int bests[256];
    __shared__ double sums[256], logs[256];
    __shared__ bool last;
    int sample = blockIdx.x, me = threadIdx.x, live = evaluates ? control->live : batch;
    const T* mine = logits + (i64)sample * classes;
    float top = __int_as_float(0xff800000);
    int best = classes;
    for (int c = me; c < classes; c += blockDim.x) {
        float v = lift(mine[c]);
        if (v > top) top = v, best = c;
    }
    tops[me] = top, bests[me] = best;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (me < half) {
            float v = tops[me + half];
            int b = bests[me + half];
            if (v > tops[me] || (v == tops[me] && b < bests[me])) tops[me] = v, bests[me] = b;
        }
        __syncthreads();
    }
    top = tops[0];
    best = bests[0] == classes ? 0 : bests[0];
    double sum = 0, far = 0;
    for (int c = me; c < classes; c += blockDim.x) {
        double d = (double)(lift(mine[c]) - top);
        sum += exp(d), far += d;
    }
    sums[me] = sum, logs[me] = far;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (me < half) sums[me] += sums[me + half], logs[me] += logs[me + half];
        __syncthreads();
    }
    sum = sums[0], far = logs[0];
    unsigned label = labels[sample];
    double spread = (double)smoothing / classes, sure = 1.0 - (double)smoothing;
    if (grad)
        for (int c = me; c < classes; c += blockDim.x) {
            double p = exp((double)(lift(mine[c]) - top)) / sum;
            double target = spread + (c == label ? sure : 0.0);
            grad[(i64)sample * classes + c] = lower((float)((p - target) / ((double)batch * control->passes)));
        }
    if (me == 0) {
        double own = log(sum) - (double)(lift(mine[label]) - top);
        double loss = smoothing == 0 ? own : sure * own + spread * (classes * log(sum) - far);
        losses[2 * sample] = sample < live ? (float)loss : 0.0f;
        losses[2 * sample + 1] = sample < live && best == label ? 1.0f : 0.0f;
        __threadfence();
        last = atomicAdd(counter, 1) == gridDim.x - 1;
        if (last) {
            *counter = 0;
            __threadfence();
        }
    }
    __syncthreads();
    if (!last) return;
    sum = far = 0;
    for (int s = me; s < batch; s += blockDim.x) sum += __ldcg(losses + 2 * s), far += __ldcg(losses + 2 * s + 1);
    sums[me] = sum, logs[me] = far;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (me < half) sums[me] += sums[me + half], logs[me] += logs[me + half];
        __syncthreads();
    }
    if (me == 0) {
        out->loss = live > 0 ? (float)(sums[0] / live) : 0.0f;
        out->correct = (unsigned)logs[0];
    }
}

// each: values of one sample.
extern "C" __global__ void squared_error(const T* output, const T* target, T* grad, int batch, i64 each, int evaluates,
                                         const Control* control, float* parts, unsigned* counter, Score* out) {
    ENTER;
    __shared__ double sums[256];
    __shared__ bool last;
    int me = threadIdx.x;
    i64 count = each * (evaluates ? control->live : batch);
    float factor = (float)(2.0 / ((double)count * control->passes));
    double sum = 0;
    EACH(i, count) {
        float d = lift(output[i]) - lift(target[i]);
        sum += (double)d * d;
        if (grad) grad[i] = lower(factor * d);
    }
    sums[me] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (me < half) sums[me] += sums[me + half];
        __syncthreads();
    }
    if (me == 0) {
        parts[blockIdx.x] = (float)sums[0];
        __threadfence();
        last = atomicAdd(counter, 1) == gridDim.x - 1;
        if (last) {
            *counter = 0;
            __threadfence();
        }
    }
    __syncthreads();
    if (!last) return;
    sum = 0;
    for (int part = me; part < gridDim.x; part += blockDim.x) sum += __ldcg(parts + part);
    __syncthreads();
    sums[me] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (me < half) sums[me] += sums[me + half];
        __syncthreads();
    }
    if (me == 0) out->loss = count > 0 ? (float)(sums[0] / count) : 0.0f, out->correct = 0;
}

// ---- weights --------------------------------------------------------------------------------------------------------

// A kernel tensor: canonical [rows][out] in fp32, and [out][rows] (NHWC, each tap's channels padded from `in` to `wide`)
// or [out][in][taps] (NCHW) in T.
struct Tensor {
    i64 canonical, packed; // offsets in values
    int taps, in, wide, out;
    int first_tile, tiles_across;
};

__device__ __forceinline__ i64 packed_row(const Tensor& t, int row, int nchw) {
    int tap = row / t.in, c = row % t.in;
    return nchw ? (i64)c * t.taps + tap : (i64)tap * t.wide + c;
}

// A tile of a kernel tensor: so many rows of 32 outputs. A block of 32 x 8 threads has it.
#define TILE_ROWS 64
#define TILE_STEP 8

struct Tile {
    Tensor t;
    int row0, out0, rows;
    i64 each; // packed values of an output
};

__device__ __forceinline__ Tile tile_of(const Tensor* tensors, const int* owners, int tile, int nchw) {
    Tile of;
    of.t = tensors[owners[tile]];
    int local = tile - of.t.first_tile;
    of.row0 = local / of.t.tiles_across * TILE_ROWS, of.out0 = local % of.t.tiles_across * 32;
    of.rows = of.t.taps * of.t.in;
    of.each = (i64)of.t.taps * (nchw ? of.t.in : of.t.wide);
    return of;
}

// Calls each(row, out, place, number) for the values of a tile that a thread has in packed order.
template <class Each> __device__ __forceinline__ void packed_values(const Tile& of, int nchw, Each each) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int i = half * 32 + threadIdx.x, row = of.row0 + i;
        if (row >= of.rows) continue;
        i64 at = of.t.packed + packed_row(of.t, row, nchw);
#pragma unroll
        for (int j = 0; j < 32 / TILE_STEP; j++) {
            int out = threadIdx.y + j * TILE_STEP;
            if (of.out0 + out < of.t.out) each(i, out, at + (of.out0 + out) * of.each, half * 4 + j);
        }
    }
}

// The same in canonical order.
template <class Each> __device__ __forceinline__ void canonical_values(const Tile& of, Each each) {
#pragma unroll
    for (int j = 0; j < TILE_ROWS / TILE_STEP; j++) {
        int i = threadIdx.y + j * TILE_STEP, row = of.row0 + i, out = of.out0 + threadIdx.x;
        if (row < of.rows && out < of.t.out) each(i, threadIdx.x, of.t.canonical + (i64)row * of.t.out + out, j);
    }
}

// Packed copies of the master weights. Blocks of 32 x 8 threads, a tile each.
extern "C" __global__ void __launch_bounds__(256)
    pack_weights(const Tensor* tensors, const int* owners, const float* params, T* packed, int nchw) {
    ENTER;
    __shared__ float tile[TILE_ROWS][33];
    Tile of = tile_of(tensors, owners, blockIdx.x, nchw);
    canonical_values(of, [&](int row, int out, i64 at, int) { tile[row][out] = params[at]; });
    __syncthreads();
    packed_values(of, nchw, [&](int row, int out, i64 at, int) { packed[at] = lower(tile[row][out]); });
}

// Gradients in canonical order from packed ones; of the tensors whose tiles begin with the first.
extern "C" __global__ void __launch_bounds__(256)
    unpack_gradients(const Tensor* tensors, const int* owners, const T* packed, float* grads, int nchw, int add, int first) {
    ENTER;
    __shared__ float tile[TILE_ROWS][33];
    Tile of = tile_of(tensors, owners, first + blockIdx.x, nchw);
    packed_values(of, nchw, [&](int row, int out, i64 at, int) { tile[row][out] = lift(packed[at]); });
    __syncthreads();
    canonical_values(of, [&](int row, int out, i64 at, int) { grads[at] = (add ? grads[at] : 0.0f) + tile[row][out]; });
}

// ---- the first convolution --------------------------------------------------------------------------------------------

#ifdef BF16

// A convolution of few input channels, kept as eight, on tensor cores: a step of the product is two taps. Weights are packed:
// [out][tap][8]. A block holds all of them and takes one tile of 16 x 16 outputs after another; a warp has two rows of it.
template <int OUT> __device__ __forceinline__ void stem(const Window& k, const T* x, const T* weights, T* y) {
    extern __shared__ __align__(16) float shared[];
    const int SIDE = 16, VECTORS = OUT / 8, PIXEL = OUT / 2 + 4;
    int taps = k.kh * k.kw, pairs = (taps + 1) / 2, row_words = pairs * 8 + 4;
    int high = (SIDE - 1) * k.sh + k.kh, wide = (SIDE - 1) * k.sw + k.kw;
    unsigned* kernel = (unsigned*)shared;
    unsigned* patch = kernel + OUT * row_words;
    unsigned* staged = patch + high * wide * 4;
    int* where = (int*)(staged + 256 * PIXEL);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int i = threadIdx.x; i < 2 * pairs; i += 256) where[i] = i < taps ? (i / k.kw * wide + i % k.kw) * 4 : 0;
    // A tap beyond the last has weights of zero.
    for (int i = threadIdx.x; i < OUT * 2 * pairs; i += 256) {
        int out = i / (2 * pairs), tap = i % (2 * pairs);
        uint4 v = {0, 0, 0, 0};
        if (tap < taps) v = *(const uint4*)(weights + ((i64)out * taps + tap) * 8);
        *(uint4*)(kernel + out * row_words + tap * 4) = v;
    }
    int across = (k.W + SIDE - 1) / SIDE, down = (k.H + SIDE - 1) / SIDE;
    for (int tile = blockIdx.x; tile < k.batch * down * across; tile += gridDim.x) {
        int x0 = tile % across * SIDE, y0 = tile / across % down * SIDE, n = tile / across / down;
        __syncthreads();
        for (int i = threadIdx.x; i < high * wide; i += 256) {
            int iy = y0 * k.sh - k.top + i / wide, ix = x0 * k.sw - k.left + i % wide;
            uint4 v = {0, 0, 0, 0};
            if (iy >= 0 && iy < k.h && ix >= 0 && ix < k.w)
                v = *(const uint4*)(x + (((i64)n * k.h + iy) * k.w + ix) * 8);
            *(uint4*)(patch + i * 4) = v;
        }
        __syncthreads();
        float sum[2][VECTORS][4];
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int j = 0; j < VECTORS; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[m][j][e] = 0;
        const unsigned* at[2];
#pragma unroll
        for (int m = 0; m < 2; m++) at[m] = patch + ((warp * 2 + m) * k.sh * wide + g * k.sw) * 4 + t;
        int eight = 8 * k.sw * 4;
        for (int pair = 0; pair < pairs; pair++) {
            int first = where[2 * pair], second = where[2 * pair + 1];
            unsigned a[2][4];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                a[m][0] = at[m][first], a[m][1] = at[m][first + eight];
                a[m][2] = at[m][second], a[m][3] = at[m][second + eight];
            }
#pragma unroll
            for (int j = 0; j < VECTORS; j++) {
                const unsigned* b = kernel + (j * 8 + g) * row_words + pair * 8 + t;
                unsigned b0 = b[0], b1 = b[4];
#pragma unroll
                for (int m = 0; m < 2; m++)
                    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                                 : "+f"(sum[m][j][0]), "+f"(sum[m][j][1]), "+f"(sum[m][j][2]), "+f"(sum[m][j][3])
                                 : "r"(a[m][0]), "r"(a[m][1]), "r"(a[m][2]), "r"(a[m][3]), "r"(b0), "r"(b1));
            }
        }
        // Through shared memory, so that whole pixels are written.
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                unsigned* to = staged + ((warp * 2 + m) * SIDE + g + 8 * half) * PIXEL + t;
#pragma unroll
                for (int j = 0; j < VECTORS; j++)
                    to[j * 4] = (unsigned)lower(sum[m][j][2 * half]) | (unsigned)lower(sum[m][j][2 * half + 1]) << 16;
            }
        __syncwarp();
        for (int i = lane; i < 2 * SIDE * VECTORS; i += 32) {
            int pixel = i / VECTORS, vector = i % VECTORS, oy = y0 + warp * 2 + pixel / SIDE, ox = x0 + pixel % SIDE;
            if (oy < k.H && ox < k.W)
                *(uint4*)(y + (((i64)n * k.H + oy) * k.W + ox) * OUT + vector * 8) =
                    *(const uint4*)(staged + (warp * 2 * SIDE + pixel) * PIXEL + vector * 4);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 2) stem_32(Window k, const T* x, const T* weights, T* y) {
    ENTER;
    stem<32>(k, x, weights, y);
}

extern "C" __global__ void __launch_bounds__(256, 2) stem_64(Window k, const T* x, const T* weights, T* y) {
    ENTER;
    stem<64>(k, x, weights, y);
}

#endif

// ---- updates --------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void descend(float& p, float g, float* v, float rate, float momentum, float decay, int nesterov) {
    g += decay * p;
    if (v) {
        *v = momentum * *v + g;
        g = nesterov ? g + momentum * *v : *v;
    }
    p -= rate * g;
}

extern "C" __global__ void sgd(float* params, const float* grads, float* velocity, i64 count, float momentum, float decay,
                               int nesterov, const Control* control) {
    ENTER;
    float rate = control->rate;
    bool aligned = (((u64)params | (u64)grads | (u64)velocity) & 15) == 0;
    i64 fours = aligned ? count / 4 : 0;
    EACH(i, fours) {
        float4 p = ((float4*)params)[i], g = ((const float4*)grads)[i], v;
        if (velocity) v = ((float4*)velocity)[i];
        descend(p.x, g.x, velocity ? &v.x : 0, rate, momentum, decay, nesterov);
        descend(p.y, g.y, velocity ? &v.y : 0, rate, momentum, decay, nesterov);
        descend(p.z, g.z, velocity ? &v.z : 0, rate, momentum, decay, nesterov);
        descend(p.w, g.w, velocity ? &v.w : 0, rate, momentum, decay, nesterov);
        if (velocity) ((float4*)velocity)[i] = v;
        ((float4*)params)[i] = p;
    }
    EACH(i, count - 4 * fours) {
        i64 at = 4 * fours + i;
        descend(params[at], grads[at], velocity ? velocity + at : 0, rate, momentum, decay, nesterov);
    }
}

// The same for tensors that have packed copies, straight from packed gradients and into the packed copies of the weights.
// Blocks of 32 x 8 threads, a tile each; all that it reads is under way at once.
extern "C" __global__ void __launch_bounds__(256, 6)
    sgd_packed(const Tensor* tensors, const int* owners, const T* grads, T* packed, float* params, float* velocity, int nchw,
               float momentum, float decay, int nesterov, const Control* control) {
    ENTER;
    const int EACH_THREAD = TILE_ROWS / TILE_STEP;
    __shared__ float tile[TILE_ROWS][33];
    Tile of = tile_of(tensors, owners, blockIdx.x, nchw);
    float rate = control->rate, p[EACH_THREAD], v[EACH_THREAD];
    T g[EACH_THREAD];
    packed_values(of, nchw, [&](int, int, i64 at, int number) { g[number] = grads[at]; });
    canonical_values(of, [&](int, int, i64 at, int number) {
        p[number] = params[at];
        v[number] = velocity ? velocity[at] : 0.0f;
    });
    packed_values(of, nchw, [&](int row, int out, i64, int number) { tile[row][out] = lift(g[number]); });
    __syncthreads();
    canonical_values(of, [&](int row, int out, i64 at, int number) {
        descend(p[number], tile[row][out], velocity ? &v[number] : 0, rate, momentum, decay, nesterov);
        if (velocity) velocity[at] = v[number];
        params[at] = tile[row][out] = p[number];
    });
    __syncthreads();
    packed_values(of, nchw, [&](int row, int out, i64 at, int) { packed[at] = lower(tile[row][out]); });
}

// The same for stretches of values that have none; a block each.
extern "C" __global__ void sgd_stretches(const int2* stretches, const float* grads, float* params, float* velocity,
                                         float momentum, float decay, int nesterov, const Control* control) {
    ENTER;
    float rate = control->rate;
    int2 stretch = stretches[blockIdx.x];
    for (int at = stretch.x + threadIdx.x; at < stretch.y; at += blockDim.x)
        descend(params[at], grads[at], velocity ? velocity + at : 0, rate, momentum, decay, nesterov);
}

// Rate and root carry the corrections of bias.
extern "C" __global__ void adam(float* params, const float* grads, float* first, float* second, i64 count, float beta1,
                                float beta2, float epsilon, float decay, const Control* control) {
    ENTER;
    float rate = control->rate, root = control->root;
    EACH(i, count) {
        float p = params[i], g = grads[i] + decay * p;
        float m = beta1 * first[i] + (1 - beta1) * g, v = beta2 * second[i] + (1 - beta2) * g * g;
        first[i] = m, second[i] = v;
        params[i] = p - rate * (m / (sqrtf(v) / root + epsilon));
    }
}

// The mean of several ranks' gradients, which lie side by side, added in their order.
extern "C" __global__ void average(const float* gathered, float* grads, i64 count, int ranks) {
    ENTER;
    float scale = 1.0f / ranks;
    EACH(i, count) {
        float sum = gathered[i];
        for (int rank = 1; rank < ranks; rank++) sum += gathered[rank * count + i];
        grads[i] = sum * scale;
    }
}
