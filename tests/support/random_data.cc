#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tests/support/program_generator.h"

namespace minka {

void ProgramGenerator::Broadcast() {
  const Known x = Pick(kF32);
  const Dims old = shape(x.value).dims;
  if (old.size() > 2 || Product(old) > kMaxElements / 4) return;
  Dims dims = old, places(old.size());
  std::iota(places.begin(), places.end(), 0);
  const int64_t at = Below(static_cast<int64_t>(old.size()) + 1);
  dims.insert(dims.begin() + at, Chance(50) ? 2 : 4);
  for (int64_t& place : places) place += place >= at ? 1 : 0;
  Keep(builder_.Broadcast(x.value, dims, places), x.bound);
}

void ProgramGenerator::Reshape() {
  const Known x = Pick(Chance(85) ? kF32 : kS32, 1);
  int64_t left = Product(shape(x.value).dims);
  Dims dims;
  while (left > 1 && dims.size() < 3) {
    std::vector<int64_t> divisors;
    for (int64_t d = 1; d <= left; ++d) {
      if (left % d == 0) divisors.push_back(d);
    }
    dims.push_back(divisors[Below(static_cast<int64_t>(divisors.size()))]);
    left /= dims.back();
  }
  dims.push_back(left);
  Keep(builder_.Reshape(x.value, dims), x.bound);
}

void ProgramGenerator::Transpose() {
  const Known x = Pick(kF32, 2);
  Dims permutation(static_cast<size_t>(rank(x)));
  std::iota(permutation.begin(), permutation.end(), 0);
  std::shuffle(permutation.begin(), permutation.end(), engine_);
  Keep(builder_.Transpose(x.value, permutation), x.bound);
}

void ProgramGenerator::Slice() {
  const Known x = Pick(kF32, 1);
  const Dims& dims = shape(x.value).dims;
  SliceAttributes slice{Dims(dims.size(), 0), dims, Dims(dims.size(), 1)};
  const int64_t dim = Below(rank(x));
  slice.starts[dim] = Below(dims[dim]);
  slice.limits[dim] = Between(slice.starts[dim] + 1, dims[dim]);
  slice.strides[dim] = Between(1, 2);
  Keep(builder_.Slice(x.value, slice), x.bound);
}

void ProgramGenerator::Pad() {
  const Known x = Pick(kF32, 1);
  const size_t num_dims = shape(x.value).dims.size();
  PadAttributes pad{Dims(num_dims, 0), Dims(num_dims, 0), Dims(num_dims, 0)};
  const int64_t dim = Below(rank(x));
  if (Product(shape(x.value).dims) / shape(x.value).dims[dim] > 256) return;
  pad.low[dim] = Between(0, 2);
  pad.high[dim] = Between(0, 2);
  pad.interior[dim] = Between(0, 1);
  const Value padding = Chance(30) ? builder_.Scalar(kF32, 0) : PickLike(kF32, {}).value;
  Keep(builder_.Pad(x.value, padding, pad), std::max(x.bound, kLimit / 8));
}

void ProgramGenerator::Concatenate() {
  const Known x = Pick(kF32, 1);
  if (Product(shape(x.value).dims) > kMaxElements / 2) return;
  const Known y = PickLike(kF32, shape(x.value).dims);
  const Value both[] = {x.value, y.value};
  Keep(builder_.Concatenate(both, Below(rank(x))), std::max(x.bound, y.bound));
}

void ProgramGenerator::Reverse() {
  const Known x = Pick(kF32, 1);
  Instruction reverse{.opcode = Opcode::kReverse, .operands = {x.value}};
  reverse.attributes = DimensionsAttributes{{Below(rank(x))}};
  Keep(builder_.Append(std::move(reverse)), x.bound);
}

void ProgramGenerator::DynamicSlice() {
  const Known x = Pick(kF32, 1);
  Dims sizes = shape(x.value).dims;
  const int64_t dim = Below(rank(x));
  sizes[dim] = Between(1, sizes[dim]);
  std::vector<Value> starts;
  for (int64_t i = 0; i < rank(x); ++i) starts.push_back(PickLike(kS32, {}).value);
  Keep(builder_.DynamicSlice(x.value, starts, sizes), x.bound);
}

void ProgramGenerator::DynamicUpdateSlice() {
  const Known x = Pick(kF32, 1);
  Dims sizes = shape(x.value).dims;
  const int64_t dim = Below(rank(x));
  sizes[dim] = Between(1, sizes[dim]);
  const Known update = PickLike(kF32, sizes);
  std::vector<Value> starts;
  for (int64_t i = 0; i < rank(x); ++i) starts.push_back(PickLike(kS32, {}).value);
  Keep(builder_.DynamicUpdateSlice(x.value, update.value, starts), std::max(x.bound, update.bound));
}

ProgramGenerator::Known ProgramGenerator::Indices(int64_t& index_vector_dim) {
  Dims dims = RandomDims(static_cast<int>(Between(1, 2)));
  index_vector_dim = static_cast<int64_t>(dims.size());
  if (Product(dims) > 64) dims = {8};
  index_vector_dim = static_cast<int64_t>(dims.size());
  const bool with_vectors = Chance(50);
  Known indices = PickLike(kS32, dims);
  if (Chance(20)) indices.value = builder_.Convert(indices.value, ElementType::kS64);
  if (with_vectors) {
    dims.push_back(1);
    indices.value = builder_.Reshape(indices.value, dims);
  }
  return indices;
}

void ProgramGenerator::Gather() {
  const Known table = Pick(kF32, 1);
  const Dims dims = shape(table.value).dims;
  const int64_t looked_up = Below(rank(table));
  GatherAttributes gather;
  const Known indices = Indices(gather.index_vector_dim);
  const int64_t num_batch = gather.index_vector_dim;
  gather.start_index_map = {looked_up};
  gather.slice_sizes = dims;
  gather.slice_sizes[looked_up] = 1;
  if (Chance(80)) gather.collapsed_slice_dims = {looked_up};
  const auto num_offsets = static_cast<int64_t>(dims.size() - gather.collapsed_slice_dims.size());
  const bool offsets_first = Chance(30);
  for (int64_t i = 0; i < num_offsets; ++i) {
    gather.offset_dims.push_back(offsets_first ? i : num_batch + i);
  }
  if (Product(dims) / dims[looked_up] > 128) return;
  Keep(builder_.Gather(table.value, indices.value, gather), table.bound);
}

void ProgramGenerator::Scatter() {
  Known table = Pick(kF32, 1);
  const Dims dims = shape(table.value).dims;
  const int64_t looked_up = Below(rank(table));
  ScatterAttributes scatter;
  const Known indices = Indices(scatter.index_vector_dim);
  Dims update_dims(shape(indices.value).dims.begin(),
                   shape(indices.value).dims.begin() + scatter.index_vector_dim);
  const double count = static_cast<double>(Product(update_dims));
  scatter.scatter_dims_to_operand_dims = {looked_up};
  scatter.inserted_window_dims = {looked_up};
  for (int64_t dim = 0; dim < rank(table); ++dim) {
    if (dim == looked_up) continue;
    scatter.update_window_dims.push_back(static_cast<int64_t>(update_dims.size()));
    update_dims.push_back(dims[dim]);
  }
  if (Product(update_dims) > kMaxElements) return;
  Known updates = PickLike(kF32, update_dims);
  const bool adds = Chance(65);
  if (adds) {
    table = Bounded(table, kLimit / 4);
    updates = Bounded(updates, std::floor(kLimit / 2 / count));
  }
  Keep(builder_.Scatter(table.value, indices.value, updates.value, scatter,
                        adds ? Opcode::kAdd : Opcode::kMaximum),
       adds ? table.bound + updates.bound * count : std::max(table.bound, updates.bound));
}

void ProgramGenerator::GatherVectors() {
  const Known table = Pick(kF32, 2);
  const Dims dims = shape(table.value).dims;
  const Known indices = PickLike(kS32, {8, 2});
  GatherAttributes gather{.collapsed_slice_dims = {0, 1},
                          .start_index_map = {0, 1},
                          .slice_sizes = dims,
                          .index_vector_dim = 1};
  gather.slice_sizes[0] = gather.slice_sizes[1] = 1;
  for (int64_t i = 2; i < rank(table); ++i) gather.offset_dims.push_back(i - 1);
  Keep(builder_.Gather(table.value, indices.value, gather), table.bound);
}

void ProgramGenerator::GatherWindows() {
  const Known table = Pick(kF32, 1);
  const Dims dims = shape(table.value).dims;
  const int64_t dim = Below(rank(table));
  GatherAttributes gather{.start_index_map = {dim}, .slice_sizes = dims, .index_vector_dim = 1};
  gather.slice_sizes[dim] = Between(1, dims[dim]);
  if (Product(gather.slice_sizes) > kMaxElements / 4) return;
  for (int64_t i = 0; i < rank(table); ++i) gather.offset_dims.push_back(i + 1);
  Keep(builder_.Gather(table.value, PickLike(kS32, {4}).value, gather), table.bound);
}

void ProgramGenerator::ScatterWindows() {
  const Known table = Bounded(Pick(kF32, 1), kLimit / 4);
  const Dims dims = shape(table.value).dims;
  const int64_t dim = Below(rank(table));
  ScatterAttributes scatter{.scatter_dims_to_operand_dims = {dim}, .index_vector_dim = 1};
  Dims update_dims = {4};
  for (int64_t i = 0; i < rank(table); ++i) {
    scatter.update_window_dims.push_back(i + 1);
    update_dims.push_back(i == dim ? Between(1, dims[i]) : dims[i]);
  }
  if (Product(update_dims) > kMaxElements) return;
  const Known updates = Bounded(PickLike(kF32, update_dims), kLimit / 16);
  Keep(builder_.Scatter(table.value, PickLike(kS32, {4}).value, updates.value, scatter,
                        Opcode::kAdd),
       table.bound + 4 * updates.bound);
}

}  // namespace minka
