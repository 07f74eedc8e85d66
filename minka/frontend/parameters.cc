#include "minka/frontend/parameters.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/frontend/random.h"

namespace minka {
namespace {

// In (0, 1).
double UnitInterval(uint32_t bits) { return (static_cast<double>(bits) + 0.5) * 0x1p-32; }

double NormalNumber(uint64_t index, uint64_t key) {
  const double radius = std::sqrt(-2 * std::log(UnitInterval(SquaresBits(2 * index, key))));
  return radius * std::cos(2 * std::numbers::pi * UnitInterval(SquaresBits(2 * index + 1, key)));
}

// The same for the elements of an array.
Tensor UnitInterval(Tensor random_bits) {
  const Tensor upper = Binary(Opcode::kShiftRightLogical, random_bits, 32.0);
  return (Convert(upper, ElementType::kF64) + 0.5) * 0x1p-32;
}

Tensor NormalNumbers(Tensor mixed_key, uint64_t site, const std::vector<int64_t>& dims) {
  const auto draw = [&](int64_t offset) {
    return UnitInterval(RandomBits(mixed_key, site, dims, /*stride=*/2, offset));
  };
  const Tensor radius = Sqrt(-2.0 * Log(draw(0)));
  return radius * Cosine(2 * std::numbers::pi * draw(1));
}

double FillValue(const Initializer& initializer) {
  switch (initializer.kind) {
    case Initializer::Kind::kZeros:
      return 0;
    case Initializer::Kind::kOnes:
      return 1;
    case Initializer::Kind::kConstant:
      return initializer.scale;
    case Initializer::Kind::kNormal:
      break;
  }
  MINKA_CHECK(false);
}

}  // namespace

Literal InitialValue(const Initializer& initializer, const Shape& shape, std::string_view name,
                     uint64_t seed) {
  if (initializer.kind != Initializer::Kind::kNormal) {
    return FilledLiteral(shape, FillValue(initializer));
  }
  MINKA_CHECK(shape.type == ElementType::kF32, "{} is drawn in f32, not {}", name,
              TypeName(shape.type));
  const uint64_t key = SiteKey(MixKey(seed + 1), SiteConstant(name));
  std::string bytes(shape.num_bytes(), '\0');
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    const auto value = static_cast<float>(initializer.scale * NormalNumber(i, key));
    std::memcpy(bytes.data() + i * sizeof(value), &value, sizeof(value));
  }
  return {shape, std::make_shared<const std::string>(std::move(bytes))};
}

Tensor InitialValue(const Initializer& initializer, const Shape& shape, std::string_view name,
                    Tensor mixed_key) {
  Graph& graph = mixed_key.graph();
  const ScopeName scope(graph, name);
  if (initializer.kind != Initializer::Kind::kNormal) {
    return graph.Full(shape, FillValue(initializer));
  }
  const Tensor normal = NormalNumbers(mixed_key, SiteConstant(name), shape.dims);
  return Convert(normal * initializer.scale, shape.type);
}

void ParameterStore::Declare(const ParameterSpec& spec, Tensor value) {
  specs_.push_back(spec);
  masters_[spec.name] = value;
}

void ParameterStore::DeclareState(const ParameterSpec& spec, Tensor value) {
  states_.push_back(spec);
  state_values_[spec.name] = value;
}

Tensor ParameterStore::NewState(const std::string& name) const {
  const auto found = new_states_.find(name);
  return found == new_states_.end() ? Tensor() : found->second;
}

void ParameterStore::SetKey(Tensor key) {
  const ScopeName name(graph_, "dropout_key");
  mixed_key_ = MixKey(key);
}

Tensor ParameterStore::Use(const ParameterSpec& spec) {
  auto [it, is_new] = masters_.try_emplace(spec.name);
  if (is_new) {
    specs_.push_back(spec);
    it->second = graph_.Parameter(spec.shape, spec.name);
  } else if (it->second.valid() && it->second.shape() != spec.shape) {
    return graph_.Fail(InvalidArgument("parameter {} is used as {} and as {}", spec.name,
                                       ToString(it->second.shape()), ToString(spec.shape)));
  }
  return it->second;
}

Scope Scope::operator/(std::string_view name) const {
  return Scope(*store_, path_.empty() ? std::string(name) : fmt::format("{}/{}", path_, name));
}

Tensor Scope::Parameter(std::string_view name, std::vector<int64_t> dims,
                        const ParameterOptions& options) const {
  const Tensor master = store_->Use({.name = (*this / name).path(),
                                     .shape = {store_->dtype().parameter, std::move(dims)},
                                     .initializer = options.initializer,
                                     .decays = options.decays});
  return options.master ? master : Convert(master, compute_type());
}

Tensor Scope::State(std::string_view name, std::vector<int64_t> dims,
                    const Initializer& initializer) const {
  const ParameterSpec spec{.name = (*this / name).path(),
                           .shape = {store_->dtype().parameter, std::move(dims)},
                           .initializer = initializer};
  const auto [it, is_new] = store_->state_values_.try_emplace(spec.name);
  if (is_new) {
    store_->states_.push_back(spec);
    it->second = graph().Parameter(spec.shape, spec.name);
  } else if (it->second.valid() && it->second.shape() != spec.shape) {
    return graph().Fail(InvalidArgument("state {} is used as {} and as {}", spec.name,
                                        ToString(it->second.shape()), ToString(spec.shape)));
  }
  return StopGradient(it->second);
}

void Scope::SetState(std::string_view name, Tensor value) const {
  if (!training() || !value.valid()) return;
  const std::string path = (*this / name).path();
  const Tensor before = store_->state_values_[path];
  if (!before.valid() || before.shape() != value.shape()) {
    graph().Fail(InvalidArgument("state {} is {}, not {}", path, ToString(before.shape()),
                                 ToString(value.shape())));
  } else if (!store_->new_states_.emplace(path, value).second) {
    graph().Fail(InvalidArgument("state {} is set twice in a step; give each its own scope", path));
  }
}

Tensor Scope::RandomMask(const std::vector<int64_t>& dims, double probability) const {
  if (!training()) return Tensor();
  store_->uses_key_ = true;
  if (!store_->random_sites_.insert(path_).second) {
    return graph().Fail(
        InvalidArgument("two random masks have the path {}; give each its own scope", path_));
  }
  if (!store_->mixed_key_.valid()) return Tensor();
  const ScopeName name(graph(), path_);
  return minka::RandomMask(store_->mixed_key_, SiteConstant(path_), dims, probability);
}

Tensor Scope::Block(Tensor x, const std::function<Tensor(const Scope&, Tensor)>& block) const {
  if (!x.valid()) return x;
  const Tensor result = block(*this, x);
  if (result.valid()) store_->blocks_.push_back({.input = x.value(), .output = result.value()});
  return result;
}

}  // namespace minka
