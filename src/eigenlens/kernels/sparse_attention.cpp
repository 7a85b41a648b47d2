// Attention of blocks of queries to chosen keys, on the CPU.
//
// `attend` computes the exact softmax of a block of queries over a list of keys, a range of keys and,
// if causal, the block's own keys up to each query; in a pooled head also over the means of what is
// dropped, in groups. Some queries are exact: they attend to all other keys, too. `choose` makes the
// lists from a few exact rows.
// Keys are packed into panels of PANEL columns, so that a gathered key costs what any other key costs.
// A unit is a block of queries of one head: ((b * H) + h) * N + I.
// Tokens are taken in `order`, if there is one: blocks, keys, ranges and `valid` are places in it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int W = 16;   // floats of a vector
constexpr int MR = 6;   // rows of a tile, in registers
constexpr int NV = 4;   // vectors of a tile
#else
constexpr int W = 8;
constexpr int MR = 4;
constexpr int NV = 2;
#endif
typedef float vec __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(W * 4), aligned(4), may_alias));
constexpr int PANEL = 128;  // keys that are packed together, a multiple of NV * W
constexpr int ROWS = 48;    // sampled rows that are scored together
constexpr float NONE = -std::numeric_limits<float>::infinity();

inline vec load(const float* p) { return *reinterpret_cast<const vec*>(p); }
inline void store(float* p, vec x) { *reinterpret_cast<vec*>(p) = x; }
inline vec all(float x) { return x - vec{}; }
inline int64_t rounded(int64_t n) { return (n + W - 1) / W * W; }

// e^x for x <= 0, and 0 below -87: 2^n by the bits of a float, the rest by its series (relative error 2e-7)
inline vec exponential(vec x) {
  const ivec kept = x > -87.0f;
  x = kept ? x : vec{};
  vec t = x * 1.44269504f + 12582912.0f;
  ivec n = (ivec)t << 23;
  vec f = x - (t - 12582912.0f) * 0.693145752f;
  f -= (t - 12582912.0f) * 1.42860677e-6f;
  vec p = all(1.0f / 720);
  p = p * f + 1.0f / 120;
  p = p * f + 1.0f / 24;
  p = p * f + 1.0f / 6;
  p = p * f + 0.5f;
  p = p * f + 1.0f;
  p = p * f + 1.0f;
  return (vec)(((ivec)p + n) & kept);
}

inline float most(vec x) {
  float m = x[0];
  for (int i = 1; i < W; i++) m = std::max(m, x[i]);
  return m;
}
inline float sum(vec x) {
  float s = 0;
  for (int i = 0; i < W; i++) s += x[i];
  return s;
}

// c (rows x cols, ldc) = or += a (rows x depth, lda) b (depth x cols, ldb), a tile in registers
template <int R, int C, bool ADD>
inline void tile(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t depth) {
  vec acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int j = 0; j < C; j++) acc[r][j] = ADD ? load(c + r * ldc + j * W) : vec{};
  for (int64_t d = 0; d < depth; d++) {
    vec right[C];
#pragma GCC unroll 8
    for (int j = 0; j < C; j++) right[j] = load(b + d * ldb + j * W);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      float left = a[r * lda + d];
#pragma GCC unroll 8
      for (int j = 0; j < C; j++) acc[r][j] += left * right[j];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int j = 0; j < C; j++) store(c + r * ldc + j * W, acc[r][j]);
}

template <int C, bool ADD>
void strip(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t rows, int64_t depth) {
  int64_t r = 0;
  for (; r + MR <= rows; r += MR) tile<MR, C, ADD>(a + r * lda, lda, b, ldb, c + r * ldc, ldc, depth);
  for (; r + 2 <= rows; r += 2) tile<2, C, ADD>(a + r * lda, lda, b, ldb, c + r * ldc, ldc, depth);
  for (; r < rows; r++) tile<1, C, ADD>(a + r * lda, lda, b, ldb, c + r * ldc, ldc, depth);
}

// columns must be a multiple of W
template <bool ADD>
void product(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t rows, int64_t cols, int64_t depth) {
  int64_t j = 0;
  for (; j + NV * W <= cols; j += NV * W) strip<NV, ADD>(a, lda, b + j, ldb, c + j, ldc, rows, depth);
  for (; j < cols; j += W) strip<1, ADD>(a, lda, b + j, ldb, c + j, ldc, rows, depth);
}

// W x W block: rows of `from` (pointers) become columns of `to`
inline void transpose(const float* const* from, int64_t at, float* to, int64_t ld) {
  vec x[W];
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) x[i] = load(from[i] + at);
#pragma GCC unroll 4
  for (int step = 1; step < W; step *= 2) {
    ivec low, high;
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) {
      low[i] = (i & step) ? i - step + W : i;
      high[i] = (i & step) ? i + W : i + step;
    }
#pragma GCC unroll 16
    for (int i = 0; i < W; i++)
      if (!(i & step)) {
        vec a = x[i], b = x[i + step];
        x[i] = __builtin_shuffle(a, b, low);
        x[i + step] = __builtin_shuffle(a, b, high);
      }
  }
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) store(to + i * ld, x[i]);
}

struct View {
  const float* at;
  int64_t b, h, t;
};

// The rows of one head, by their place in the order of tokens.
struct Rows {
  const float* at;
  int64_t step;
  const int64_t* order;
  Rows(const View& view, int64_t b, int64_t h, const int64_t* order) : at(view.at + b * view.b + h * view.h), step(view.t), order(order) {}
  const float* operator[](int64_t place) const { return at + (order ? order[place] : place) * step; }
};

struct Space {
  std::vector<float> q, keys, values, scores, out, top, total, gone;
  std::vector<const float*> rows;
  std::vector<uint8_t> kept;
};

// Sums of the keys and of the values of every group of keys in a row, and how many they are.
struct GroupSums {
  int64_t B, G, S, D, E, size, number;
  std::vector<float> key, value, count;
  GroupSums(int64_t B, int64_t G, int64_t S, int64_t D, int64_t E, int64_t size)
      : B(B), G(G), S(S), D(D), E(E), size(size), number((S + size - 1) / size) {}
  void add_up(const View& K, const View& V, const int64_t* order, const uint8_t* valid, int32_t threads) {
    key.assign(B * G * number * D, 0.0f);
    value.assign(B * G * number * E, 0.0f);
    count.assign(B * G * number, 0.0f);
#pragma omp parallel for num_threads(threads)
    for (int64_t at = 0; at < B * G * number; at++) {
      const int64_t b = at / (G * number), g = at / number % G, m = at % number;
      const Rows keys(K, b, g, order), values(V, b, g, order);
      for (int64_t j = m * size; j < std::min(S, (m + 1) * size); j++) {
        if (valid && !valid[b * S + j]) continue;
        const float *kj = keys[j], *vj = values[j];
        for (int64_t d = 0; d < D; d++) key[at * D + d] += kj[d];
        for (int64_t e = 0; e < E; e++) value[at * E + e] += vj[e];
        count[at] += 1;
      }
    }
  }
};

// What a unit leaves of the groups: sums of keys and values without those it attends one by one.
struct Rest {
  const GroupSums& sums;
  std::vector<float> key, value, left;
  explicit Rest(const GroupSums& sums) : sums(sums) {}
  // All groups of the keys before `limit`; how many. In a causal call the last may be a part of a
  // group, which is added up anew, so that nothing depends on a later key.
  int64_t of_unit(int64_t b, int64_t g, int64_t limit, bool causal, const Rows& keys, const Rows& values, const uint8_t* stands) {
    const int64_t size = sums.size, groups = (limit + size - 1) / size, at = (b * sums.G + g) * sums.number;
    const int64_t ready = causal ? limit / size : groups, D = sums.D, E = sums.E;
    key.assign(&sums.key[at * D], &sums.key[at * D] + ready * D);
    value.assign(&sums.value[at * E], &sums.value[at * E] + ready * E);
    left.assign(&sums.count[at], &sums.count[at] + ready);
    key.resize(groups * D, 0.0f);
    value.resize(groups * E, 0.0f);
    left.resize(groups, 0.0f);
    for (int64_t j = ready * size; j < limit && ready < groups; j++) add(j, 1.0f, keys, values, stands);
    return groups;
  }
  void take(int64_t j, const Rows& keys, const Rows& values, const uint8_t* stands) { add(j, -1.0f, keys, values, stands); }
  void add(int64_t j, float sign, const Rows& keys, const Rows& values, const uint8_t* stands) {
    if (stands && !stands[j]) return;
    const int64_t m = j / sums.size, D = sums.D, E = sums.E;
    const float *kj = keys[j], *vj = values[j];
    for (int64_t d = 0; d < D; d++) key[m * D + d] += sign * kj[d];
    for (int64_t e = 0; e < E; e++) value[m * E + e] += sign * vj[e];
    left[m] += sign;
  }
};

// keys (n rows) as columns: to (D, PANEL)
void pack_keys(const float* const* rows, int64_t n, int64_t D, float* to) {
  for (int64_t j = 0; j < n; j += W) {
    int64_t d = 0;
    if (j + W <= n)
      for (; d + W <= D; d += W) transpose(rows + j, d, to + d * PANEL + j, PANEL);
    for (; d < D; d++)
      for (int64_t i = j; i < j + W; i++) to[d * PANEL + i] = i < n ? rows[i][d] : 0.0f;
  }
}

}  // namespace

extern "C" void attend(const float* q, const float* k, const float* v, float* out, const int64_t* sizes, const int64_t* strides,
                       float scale, const int32_t* keys, const int32_t* counts, const int32_t* ranges, const uint8_t* valid,
                       const float* mix, const float* weight, const uint8_t* pooled, const int64_t* order, const int32_t* exact,
                       int32_t threads) {
  const int64_t B = sizes[0], H = sizes[1], G = sizes[2], T = sizes[3], S = sizes[4], D = sizes[5], E = sizes[6], block = sizes[7],
                causal = sizes[8], width = sizes[9], group = sizes[10];
  const int64_t N = (T + block - 1) / block, EW = rounded(E);
  const View Q{q, strides[0], strides[1], strides[2]}, K{k, strides[3], strides[4], strides[5]}, V{v, strides[6], strides[7], strides[8]};
  GroupSums sums(B, G, S, D, E, group);
  if (pooled) sums.add_up(K, V, order, valid, threads);
#pragma omp parallel num_threads(threads)
  {
    Space s;
    Rest rest(sums);
    s.q.resize(block * D);
    s.keys.resize(D * PANEL);
    s.values.resize(PANEL * EW);
    s.scores.resize(block * PANEL);
    s.out.resize(block * EW);
    s.top.resize(block);
    s.total.resize(block);
    s.gone.resize(PANEL);
    s.rows.resize(PANEL);
#pragma omp for schedule(dynamic, 1)
    for (int64_t turn = 0; turn < B * H * N; turn++) {
      const int64_t I = N - 1 - turn / (B * H), bh = turn % (B * H), b = bh / H, h = bh % H, g = h / (H / G), u = bh * N + I;
      const int64_t begin = I * block, rows = std::min(block, T - begin);
      const Rows queries(Q, b, h, order), key_rows(K, b, g, order), value_rows(V, b, g, order);
      const uint8_t* stands = valid ? valid + b * S : nullptr;
      for (int64_t r = 0; r < rows; r++) {
        const float* from = queries[begin + r];
        for (int64_t d = 0; d < D; d++) s.q[r * D + d] = from[d] * scale;
      }
      std::fill(s.out.begin(), s.out.end(), 0.0f);
      std::fill(s.top.begin(), s.top.end(), NONE);
      std::fill(s.total.begin(), s.total.end(), 0.0f);
      const int64_t low = ranges[2 * u], high = ranges[2 * u + 1], listed = counts ? counts[u] : 0;
      const int64_t near = high - low, own = causal ? rows : 0, number = listed + near + own;
      // queries [exact_from, exact_to) of the block attend to every key
      const int64_t exact_from = exact ? std::clamp<int64_t>(exact[2 * b] - begin, 0, rows) : 0;
      const int64_t exact_to = exact ? std::clamp<int64_t>(exact[2 * b + 1] - begin, exact_from, rows) : 0;
      auto gather = [&](int64_t j, int64_t key) {
        s.rows[j] = key_rows[key];
        s.gone[j] = stands && !stands[key] ? NONE : 0.0f;
        std::memcpy(&s.values[j * EW], value_rows[key], E * 4);
        return stands && !stands[key];
      };
      // queries [skipped, until) attend to the n keys whose rows, values and `gone` were gathered; an own key
      // hides from the queries before it
      auto attend_panel = [&](int64_t n, bool gone, bool mine, int64_t skipped, int64_t until) {
        const int64_t padded = rounded(n);
        for (int64_t j = n; j < padded; j++) s.gone[j] = NONE;
        gone |= padded > n;
        pack_keys(s.rows.data(), n, D, s.keys.data());
        for (int64_t j = n; j < padded; j++) std::memset(&s.values[j * EW], 0, EW * 4);
        product<false>(&s.q[skipped * D], D, s.keys.data(), PANEL, &s.scores[skipped * PANEL], PANEL, until - skipped, padded, D);
        for (int64_t r = skipped; r < until; r++) {
          float* x = &s.scores[r * PANEL];
          if (gone)
            for (int64_t j = 0; j < padded; j += W) store(x + j, load(x + j) + load(&s.gone[j]));
          if (mine)
            for (int64_t j = r - skipped + 1; j < padded; j++) x[j] = NONE;
          vec m = all(s.top[r]);
          for (int64_t j = 0; j < padded; j += W) {
            vec y = load(x + j);
            m = y > m ? y : m;
          }
          const float top = most(m);
          if (top == NONE) {
            for (int64_t j = 0; j < padded; j++) x[j] = 0;
            continue;
          }
          vec added = vec{};
          for (int64_t j = 0; j < padded; j += W) {
            vec y = load(x + j);
            vec e = exponential(y - top);
            added += e;
            store(x + j, e);
          }
          if (top != s.top[r]) {
            const float less = std::exp(s.top[r] - top);
            s.total[r] *= less;
            for (int64_t e = 0; e < EW; e += W) store(&s.out[r * EW + e], load(&s.out[r * EW + e]) * less);
            s.top[r] = top;
          }
          s.total[r] += sum(added);
        }
        product<true>(&s.scores[skipped * PANEL], PANEL, s.values.data(), EW, &s.out[skipped * EW], EW, until - skipped, EW, padded);
      };
      int64_t done = 0;
      while (done < number) {
        // a panel holds listed and near keys, or the block's own
        const bool mine = done >= listed + near;
        const int64_t n = std::min<int64_t>(mine ? PANEL : std::min<int64_t>(PANEL, listed + near - done), number - done);
        bool gone = false;
        for (int64_t j = 0; j < n; j++) {
          const int64_t at = done + j;
          gone |= gather(j, mine ? begin + at - listed - near : at < listed ? keys[u * width + at] : low + at - listed);
        }
        attend_panel(n, gone, mine, mine ? done - listed - near : 0, rows);
        done += n;
      }
      if (exact_to > exact_from) {  // what the block does not keep
        s.kept.assign(S, 0);
        for (int64_t j = 0; j < listed; j++) s.kept[keys[u * width + j]] = 1;
        for (int64_t j = low; j < high; j++) s.kept[j] = 1;
        const int64_t end = causal ? begin : S;
        int64_t n = 0;
        bool gone = false;
        for (int64_t key = 0; key < end; key++) {
          if (s.kept[key]) continue;
          gone |= gather(n++, key);
          if (n < PANEL) continue;
          attend_panel(n, gone, false, exact_from, exact_to);
          n = gone = 0;
        }
        if (n) attend_panel(n, gone, false, exact_from, exact_to);
      }
      if (pooled && pooled[h]) {
        const int64_t groups = rest.of_unit(b, g, causal ? low : S, causal, key_rows, value_rows, stands);
        for (int64_t j = 0; j < listed; j++) rest.take(keys[u * width + j], key_rows, value_rows, stands);
        if (!causal)
          for (int64_t j = low; j < high; j++) rest.take(j, key_rows, value_rows, stands);
        int64_t n = 0;
        for (int64_t m = 0; m < groups; m++) {
          if (rest.left[m] > 0) {
            const float by = 1.0f / rest.left[m];
            for (int64_t d = 0; d < D; d++) rest.key[m * D + d] *= by;
            for (int64_t e = 0; e < E; e++) s.values[n * EW + e] = rest.value[m * E + e] * by;
            s.rows[n] = &rest.key[m * D];
            s.gone[n++] = std::log(rest.left[m]);
          }
          if (n == PANEL || (n && m + 1 == groups)) {
            if (exact_from) attend_panel(n, true, false, 0, exact_from);
            if (exact_to < rows) attend_panel(n, true, false, exact_to, rows);
            n = 0;
          }
        }
      }
      for (int64_t r = 0; r < rows; r++) {
        const float lost = weight && (r < exact_from || r >= exact_to) ? weight[u] : 0.0f;
        const int64_t token = order ? order[begin + r] : begin + r;
        float* to = out + b * strides[9] + h * strides[10] + token * strides[11];
        const float by = s.total[r] > 0 ? (1 - lost) / s.total[r] : 0.0f;
        for (int64_t e = 0; e < E; e++) to[e] = s.out[r * EW + e] * by + (lost ? lost * mix[u * E + e] : 0.0f);
      }
    }
  }
}

// Which keys each unit keeps: those whose mean probability in a few exact rows is at least a threshold.
//
// The n heads to choose for are given by their places among the queries, keys, values and units;
// heads that follow each other and have the same keys share a packed panel. Row s of block I is
// positions[I, s]. Keys of ranges[unit] are attended anyway and not listed; the first keys that are no
// padding are always listed. Written: keys[unit, :counts[unit]], and of what is dropped its mass
// (weight) and mean value (mix). A block without a single valid row keeps every key.
extern "C" void choose(const float* q, const float* k, const float* v, const int64_t* sizes, const int64_t* strides,
                       float scale, const int32_t* places, const int32_t* positions, const float* thresholds,
                       const int32_t* ranges, const uint8_t* valid, int32_t* keys, int32_t* counts, float* mix,
                       float* weight, const int64_t* order, int32_t threads) {
  const int64_t B = sizes[0], n = sizes[1], H = sizes[2], T = sizes[3], S = sizes[4], D = sizes[5], E = sizes[6],
                block = sizes[7], causal = sizes[8], width = sizes[9], samples = sizes[10], first = sizes[11];
  const int32_t *qs = places, *ks = places + n, *vs = places + 2 * n, *us = places + 3 * n;
  const int64_t N = (T + block - 1) / block, EW = rounded(E), SW = (S + PANEL - 1) / PANEL * PANEL;
  const View Q{q, strides[0], strides[1], strides[2]}, K{k, strides[3], strides[4], strides[5]},
      V{v, strides[6], strides[7], strides[8]};
  struct Task {
    int64_t b, from, to, head, heads;
  };
  std::vector<Task> tasks;
  int64_t most_rows = 0, most_units = 0;
  for (int64_t head = 0, heads; head < n; head += heads) {
    heads = 1;
    while (head + heads < n && ks[head + heads] == ks[head] && vs[head + heads] == vs[head]) heads++;
    const int64_t C = std::max<int64_t>(1, ROWS / (heads * samples));
    for (int64_t from = 0; from < N; from += C)
      for (int64_t b = 0; b < B; b++) tasks.push_back({b, from, std::min(N, from + C), head, heads});
    most_rows = std::max(most_rows, C * heads * samples);
    most_units = std::max(most_units, C * heads);
  }
  // the last blocks see most keys: they begin
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& x, const Task& y) { return x.from > y.from; });
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> rows(most_rows * D), packed(D * PANEL), scores(most_rows * SW), mass(most_units * SW),
        out(most_units * EW), values(PANEL * EW), lost(most_units);
    std::vector<const float*> at(PANEL);
#pragma omp for schedule(dynamic, 1)
    for (size_t turn = 0; turn < tasks.size(); turn++) {
      const Task& task = tasks[turn];
      const int64_t b = task.b, units = (task.to - task.from) * task.heads;
      const Rows key_rows(K, b, ks[task.head], order), value_rows(V, b, vs[task.head], order);
      const uint8_t* stands = valid ? valid + b * S : nullptr;
      int64_t start = 0;
      while (stands && start < S && !stands[start]) start++;
      int64_t seen = 0, row = 0;
      for (int64_t unit = 0; unit < units; unit++) {
        const int64_t I = task.from + unit / task.heads, h = task.head + unit % task.heads;
        const Rows queries(Q, b, qs[h], order);
        for (int64_t s = 0; s < samples; s++, row++) {
          const int64_t p = positions[I * samples + s];
          seen = std::max(seen, causal ? p + 1 : S);
          const float* from = queries[p];
          for (int64_t d = 0; d < D; d++) rows[row * D + d] = from[d] * scale;
        }
      }
      const int64_t padded = rounded(seen);
      for (int64_t j = 0; j < seen; j += PANEL) {
        const int64_t number = std::min<int64_t>(PANEL, seen - j);
        for (int64_t i = 0; i < number; i++) at[i] = key_rows[j + i];
        pack_keys(at.data(), number, D, packed.data());
        product<false>(rows.data(), D, packed.data(), PANEL, &scores[j], SW, row, rounded(number), D);
      }
      row = 0;
      for (int64_t unit = 0; unit < units; unit++) {
        const int64_t I = task.from + unit / task.heads, h = task.head + unit % task.heads;
        const int64_t u = (b * H + us[h]) * N + I, low = ranges[2 * u], high = ranges[2 * u + 1];
        float* m = &mass[unit * SW];
        std::fill(m, m + padded, 0.0f);
        int64_t counted = 0;
        for (int64_t s = 0; s < samples; s++, row++) {
          float* x = &scores[row * SW];
          const int64_t p = positions[I * samples + s], sees = causal ? p + 1 : S, end = rounded(sees);
          if (stands && p < S && !stands[p]) continue;
          if (stands)
            for (int64_t j = 0; j < sees; j++)
              if (!stands[j]) x[j] = NONE;
          for (int64_t j = sees; j < end; j++) x[j] = NONE;
          vec top = all(NONE);
          for (int64_t j = 0; j < end; j += W) {
            vec y = load(x + j);
            top = y > top ? y : top;
          }
          const float highest = most(top);
          if (highest == NONE) continue;
          counted++;
          vec added = vec{};
          for (int64_t j = 0; j < end; j += W) {
            vec e = exponential(load(x + j) - highest);
            added += e;
            store(x + j, e);
          }
          const float by = 1.0f / sum(added);
          for (int64_t j = 0; j < end; j += W) store(m + j, load(m + j) + load(x + j) * by);
        }
        float dropped = 0;
        const float threshold = counted ? thresholds[h] * counted : NONE;
        int32_t *list = keys + u * width, number = 0;
        const int64_t end = causal ? std::min(low, S) : S;
        for (int64_t j = 0; j < end; j++) {
          if (j == low && high > low) {
            std::fill(m + low, m + high, 0.0f);
            j = high - 1;
            continue;
          }
          if (stands && !stands[j]) continue;
          const float mine = j < seen ? m[j] : 0.0f;
          if (j < start + first || mine >= threshold) {
            list[number++] = j;
            if (j < seen) m[j] = 0;
          } else
            dropped += mine;
        }
        for (int64_t j = end; j < padded; j++) m[j] = 0;
        counts[u] = number;
        lost[unit] = dropped;
        if (weight) weight[u] = counted ? dropped / counted : 0.0f;
      }
      if (!mix) continue;
      std::fill(out.begin(), out.end(), 0.0f);
      for (int64_t j = 0; j < seen; j += PANEL) {
        const int64_t number = std::min<int64_t>(PANEL, seen - j);
        for (int64_t i = 0; i < number; i++) std::memcpy(&values[i * EW], value_rows[j + i], E * 4);
        product<true>(&mass[j], SW, values.data(), EW, out.data(), EW, units, EW, number);
      }
      for (int64_t unit = 0; unit < units; unit++) {
        const int64_t u = (b * H + us[task.head + unit % task.heads]) * N + task.from + unit / task.heads;
        for (int64_t e = 0; e < E; e++) mix[u * E + e] = lost[unit] > 0 ? out[unit * EW + e] / lost[unit] : 0.0f;
      }
    }
  }
}
