#include "minka/ir/box.h"

#include <algorithm>
#include <cstring>

#include "fmt/format.h"

namespace minka {
namespace {

// Elements from one to the next one along each dimension.
std::vector<int64_t> StridesOf(const Box& part) {
  std::vector<int64_t> strides(part.rank(), 1);
  for (int dim = part.rank() - 2; dim >= 0; --dim) {
    strides[dim] = strides[dim + 1] * part.size(dim + 1);
  }
  return strides;
}

}  // namespace

int64_t Box::num_elements() const {
  int64_t product = 1;
  for (int dim = 0; dim < rank(); ++dim) product *= size(dim);
  return product;
}

bool Box::Contains(const Box& other) const {
  for (int dim = 0; dim < rank(); ++dim) {
    if (other.begin[dim] < begin[dim] || other.end[dim] > end[dim]) return false;
  }
  return true;
}

std::string ToString(const Box& box) {
  std::string text;
  for (int dim = 0; dim < box.rank(); ++dim) {
    text += fmt::format("{}{}:{}", dim == 0 ? "" : ",", box.begin[dim], box.end[dim]);
  }
  return fmt::format("[{}]", text);
}

Box BoxOf(const Shape& shape) { return {std::vector<int64_t>(shape.rank()), shape.dims}; }

std::optional<Box> Overlap(const Box& a, const Box& b) {
  Box common = a;
  for (int dim = 0; dim < a.rank(); ++dim) {
    common.begin[dim] = std::max(a.begin[dim], b.begin[dim]);
    common.end[dim] = std::min(a.end[dim], b.end[dim]);
    const bool is_empty = a.size(dim) == 0 && b.size(dim) == 0;
    if (!is_empty && common.size(dim) <= 0) return std::nullopt;
  }
  return common;
}

void CopyBox(const Box& box, int64_t element_bytes, BoxMemory<const char> from,
             BoxMemory<char> to) {
  const int64_t num_elements = box.num_elements();
  if (num_elements == 0) return;
  // The last dimensions make up a run: all but the first of them are whole on both sides.
  int outer_rank = box.rank();
  int64_t run = 1;
  bool goes_on = true;
  while (outer_rank > 0 && goes_on) {
    const int64_t size = box.size(--outer_rank);
    run *= size;
    goes_on = size == from.part->size(outer_rank) && size == to.part->size(outer_rank);
  }
  const std::vector<int64_t> from_strides = StridesOf(*from.part), to_strides = StridesOf(*to.part);
  int64_t from_at = 0, to_at = 0;
  for (int dim = 0; dim < box.rank(); ++dim) {
    from_at += (box.begin[dim] - from.part->begin[dim]) * from_strides[dim];
    to_at += (box.begin[dim] - to.part->begin[dim]) * to_strides[dim];
  }
  std::vector<int64_t> index(outer_rank);
  for (int64_t done = 0; done < num_elements; done += run) {
    std::memcpy(to.bytes + to_at * element_bytes, from.bytes + from_at * element_bytes,
                static_cast<size_t>(run * element_bytes));
    for (int dim = outer_rank - 1; dim >= 0; --dim) {
      from_at += from_strides[dim];
      to_at += to_strides[dim];
      if (++index[dim] < box.size(dim)) break;
      index[dim] = 0;
      from_at -= from_strides[dim] * box.size(dim);
      to_at -= to_strides[dim] * box.size(dim);
    }
  }
}

}  // namespace minka
