// Boxes of dense row-major arrays.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "minka/ir/shape.h"

namespace minka {

// The elements from `begin` up to, but without, `end`, by dimension.
struct Box {
  std::vector<int64_t> begin, end;

  int rank() const { return static_cast<int>(begin.size()); }
  int64_t size(int dim) const { return end[dim] - begin[dim]; }
  int64_t num_elements() const;
  // Precondition: of one rank.
  bool Contains(const Box& other) const;
  auto operator<=>(const Box&) const = default;
};

// "[0:4,8:16]"; "[]" of a scalar.
std::string ToString(const Box& box);

// All of an array.
Box BoxOf(const Shape& shape);
// nullopt: nothing. Two boxes of an array without elements have it in common if they do in the
// dimensions that are not empty. Precondition: of one rank.
std::optional<Box> Overlap(const Box& a, const Box& b);

// Where the elements of `part` lie.
template <typename Byte>
struct BoxMemory {
  Byte* bytes = nullptr;
  const Box* part = nullptr;
};

// Copies the box, whose elements have so many bytes, from where one part lies to where another
// does. Preconditions: both contain it; their memory does not overlap.
void CopyBox(const Box& box, int64_t element_bytes, BoxMemory<const char> from, BoxMemory<char> to);

}  // namespace minka
