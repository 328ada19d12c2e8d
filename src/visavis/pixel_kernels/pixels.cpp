// Pillow's resize of 8-bit RGB pictures in the same integer arithmetic, several rows at once, and the patches of vision
// towers. Coefficients come from `coefficients.py`; nothing here rounds but the final shift.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int BITS = 22;  // of the coefficients behind the point: 32 less 8 of a sample and 2 for sign and overshoot
constexpr int ROWS = 2;   // of a picture at once, 4 numbers a pixel, the last one of no use
constexpr int LANES = 4 * ROWS;

typedef int32_t Wide __attribute__((vector_size(4 * LANES)));
typedef int32_t Pixel __attribute__((vector_size(16)));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));
typedef uint8_t Quad __attribute__((vector_size(4)));

inline uint8_t clipped(int32_t sum) { return (uint8_t)std::clamp(sum >> BITS, 0, 255); }

// A row of RGB into every ROWS-th group of 4 numbers.
void spread(const uint8_t *row, int width, int32_t *out) {
  for (int x = 0; x < width; ++x) {
    Quad bytes = {};
    std::memcpy(&bytes, row + 3 * x, x + 1 < width ? 4 : 3);  // one byte of the next pixel too
    const Pixel wide = __builtin_convertvector(bytes, Pixel);
    std::memcpy(out + (size_t)x * LANES, &wide, sizeof wide);
  }
}

// The reverse, of bytes.
void gather(const uint8_t *in, int width, uint8_t *row) {
  for (int x = 0; x + 1 < width; ++x) std::memcpy(row + 3 * x, in + (size_t)x * LANES, 4);  // the next one mends the 4th
  std::memcpy(row + 3 * (width - 1), in + (size_t)(width - 1) * LANES, 3);
}

// One pixel of ROWS rows: `taps` of them times their coefficients. A count known beforehand is unrolled.
template <int TAPS>
inline Wide weighed(const int32_t *at, const int32_t *weight, int taps) {
  Wide sum = Wide{} + (1 << (BITS - 1));
  for (int k = 0; k < (TAPS ? TAPS : taps); ++k) {
    Wide pixel;
    std::memcpy(&pixel, at + (size_t)k * LANES, sizeof pixel);
    sum += pixel * weight[k];
  }
  sum >>= BITS;
  sum = sum < 0 ? Wide{} : sum;
  return sum > 255 ? Wide{} + 255 : sum;
}

template <int TAPS>
void weigh(const int32_t *pixels, uint8_t *done, int out_width, const int32_t *bounds, const int32_t *coefficients,
           int taps) {
  for (int x = 0; x < out_width; ++x) {
    const Wide sum = weighed<TAPS>(pixels + (size_t)bounds[x] * LANES, coefficients + (size_t)x * taps, taps);
    const Bytes bytes = __builtin_convertvector(sum, Bytes);
    std::memcpy(done + (size_t)x * LANES, &bytes, sizeof bytes);
  }
}

}  // namespace

extern "C" {

// Four bytes a pixel → the first three of them.
void visavis_pack(const uint8_t *source, int64_t pixels, uint8_t *target) {
  for (int64_t i = 0; i + 1 < pixels; ++i) std::memcpy(target + 3 * i, source + 4 * i, 4);  // the next one mends the 4th
  if (pixels > 0) std::memcpy(target + 3 * (pixels - 1), source + 4 * (pixels - 1), 3);
}

// source (rows, width, 3) → target (rows, out_width, 3). Output pixel x is the sum of `taps` pixels from bounds[x] on,
// times coefficients (out_width, taps); those beyond the row have a coefficient of 0.
void visavis_resize_rows(const uint8_t *source, int rows, int width, uint8_t *target, int out_width,
                         const int32_t *bounds, const int32_t *coefficients, int taps) {
  const auto step = taps == 4 ? weigh<4> : taps == 6 ? weigh<6> : taps == 8 ? weigh<8> : weigh<0>;
  std::vector<int32_t> pixels((size_t)(width + taps) * LANES);  // zeros behind the row, for coefficients of 0
  std::vector<uint8_t> done((size_t)out_width * LANES);
  for (int first = 0; first < rows; first += ROWS) {
    const int count = std::min(ROWS, rows - first);
    for (int r = 0; r < count; ++r) spread(source + (size_t)(first + r) * width * 3, width, pixels.data() + 4 * r);
    step(pixels.data(), done.data(), out_width, bounds, coefficients, taps);
    for (int r = 0; r < count; ++r)
      gather(done.data() + 4 * r, out_width, target + (size_t)(first + r) * out_width * 3);
  }
}

// Rows `begin` … `end` of target (…, width) from source (rows, width), width in bytes: the same down the columns.
void visavis_resize_columns(const uint8_t *source, int rows, int width, uint8_t *target, int begin, int end,
                            const int32_t *bounds, const int32_t *coefficients, int taps) {
  constexpr int BLOCK = 256;
  for (int y = begin; y < end; ++y) {
    const uint8_t *top = source + (size_t)bounds[y] * width;
    const int32_t *weight = coefficients + (size_t)y * taps;
    const int count = std::min(taps, rows - bounds[y]);
    uint8_t *out = target + (size_t)y * width;
    for (int first = 0; first < width; first += BLOCK) {
      int32_t sum[BLOCK];
      const int here = std::min(BLOCK, width - first);
      std::fill(sum, sum + BLOCK, 1 << (BITS - 1));
      for (int k = 0; k < count; ++k) {
        const uint8_t *row = top + (size_t)k * width + first;
        const int32_t w = weight[k];
        if (here == BLOCK) {
          for (int i = 0; i < BLOCK; ++i) sum[i] += row[i] * w;
        } else {
          for (int i = 0; i < here; ++i) sum[i] += row[i] * w;
        }
      }
      for (int i = 0; i < here; ++i) out[first + i] = clipped(sum[i]);
    }
  }
}

// pixels (frames, height, width, 3) → out (patches, 3, temporal, patch, patch) float32, each byte through table (3, 256).
// Patches come in the order of `visavis.patches.patchify`; `still`: one frame fills all of a patch, else a video that is
// too short repeats its last one.
void visavis_patches(const uint8_t *pixels, int frames, int height, int width, int patch, int merge, int temporal,
                     int still, const float *table, float *out) {
  const int cell = patch * merge, area = patch * patch;
  const int steps = still ? frames : (frames + temporal - 1) / temporal;
  for (int step = 0; step < steps; ++step)
    for (int cell_y = 0; cell_y < height; cell_y += cell)
      for (int cell_x = 0; cell_x < width; cell_x += cell)
        for (int inside = 0; inside < merge * merge; ++inside) {
          const int y = cell_y + inside / merge * patch, x = cell_x + inside % merge * patch;
          for (int t = 0; t < (still ? 1 : temporal); ++t) {
            const int frame = still ? step : std::min(step * temporal + t, frames - 1);
            for (int row = 0; row < patch; ++row) {
              const uint8_t *at = pixels + (((size_t)frame * height + y + row) * width + x) * 3;
              float *to = out + t * area + row * patch;
              for (int c = 0; c < 3; ++c)
                for (int i = 0; i < patch; ++i) to[(size_t)c * temporal * area + i] = table[c * 256 + at[3 * i + c]];
            }
          }
          if (still)
            for (int c = 0; c < 3; ++c)
              for (int t = 1; t < temporal; ++t) {
                float *first = out + (size_t)c * temporal * area;
                std::memcpy(first + t * area, first, area * sizeof(float));
              }
          out += 3 * temporal * area;
        }
}
}
