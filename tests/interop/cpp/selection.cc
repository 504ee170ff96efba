#include "selection.h"

#include <algorithm>

namespace interop {
namespace {

using dlpack_wire::v1::AxisSelection;

// The indices that a range takes of an axis of `n` elements.
std::vector<int64_t> indices(const AxisSelection::Range& range, int64_t n) {
  const int64_t step = range.has_step() ? range.step() : 1;
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? n : n - 1;
  const auto clip = [&](int64_t v) { return std::min(std::max(v < 0 ? v + n : v, low), high); };
  const int64_t start = range.has_start() ? clip(range.start()) : step > 0 ? low : high;
  const int64_t stop = range.has_stop() ? clip(range.stop()) : step > 0 ? high : low;
  std::vector<int64_t> result;
  // Compared as distances, since start + step may wrap.
  for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
    result.push_back(i);
    if (step > 0 ? stop - i <= step : stop - i >= step) break;
  }
  return result;
}

}  // namespace

Selected select(const Header& header, const std::string& data, const std::vector<AxisSelection>& selections) {
  Selected result{{}, data};
  uint64_t outer = 1;  // runs of the axes done so far
  for (size_t axis = 0; axis < header.shape.size(); ++axis) {
    const int64_t n = header.shape[axis];
    if (axis >= selections.size()) {
      result.shape.push_back(n);
      continue;
    }
    std::vector<int64_t> taken;
    if (selections[axis].has_range()) {
      taken = indices(selections[axis].range(), n);
      result.shape.push_back(static_cast<int64_t>(taken.size()));
    } else {
      const int64_t index = selections[axis].index();
      taken = {index < 0 ? index + n : index};
    }
    const uint64_t run = result.data.size() / std::max<uint64_t>(1, outer * static_cast<uint64_t>(n));
    std::string kept;
    for (uint64_t i = 0; i < outer; ++i) {
      for (int64_t j : taken) {
        kept.append(result.data, (i * static_cast<uint64_t>(n) + static_cast<uint64_t>(j)) * run, run);
      }
    }
    result.data = std::move(kept);
    outer *= taken.size();
  }
  return result;
}

}  // namespace interop
