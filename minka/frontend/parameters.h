// What a model needs besides its operations: named parameters with initial values, the type to
// compute in, random masks, and blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "minka/frontend/tensor.h"

namespace minka {

struct Initializer {
  enum class Kind { kZeros, kOnes, kConstant, kNormal };
  Kind kind = Kind::kZeros;
  double scale = 0;  // kConstant: the value; kNormal: the standard deviation
  bool operator==(const Initializer&) const = default;
};

// The initial value of a parameter: element i is a function of seed, name and i alone (Squares
// bits, normal numbers by the method of Box and Muller).
Literal InitialValue(const Initializer& initializer, const Shape& shape, std::string_view name,
                     uint64_t seed);

// The same as a value of the graph, which every device can make its part of. `mixed_key`: MixKey of
// seed + 1 as u32[2]. As near as the rounding of log, cos and sqrt lets them be equal.
Tensor InitialValue(const Initializer& initializer, const Shape& shape, std::string_view name,
                    Tensor mixed_key);

struct ParameterSpec {
  std::string name;  // path, "layer_0/attention/query/kernel"
  Shape shape;       // of the master value
  Initializer initializer;
  bool decays = false;  // does weight decay apply?
};

struct ParameterOptions {
  Initializer initializer;
  bool decays = false;
  bool master = false;  // as it is kept, not converted to the type to compute in
};

struct DtypePolicy {
  ElementType parameter = ElementType::kF32;  // master values and optimizer state
  ElementType compute = ElementType::kF32;    // activations; statistics and losses stay in f32
  bool operator==(const DtypePolicy&) const = default;
};

// What enters and leaves one block of the model.
struct BlockEnds {
  Value input, output;
};

// The state of one trace. With declared parameters (`Declare`) a use refers to them by name,
// without it collects their specs, in order of first use.
class ParameterStore {
 public:
  ParameterStore(Graph& graph, DtypePolicy dtype, bool training)
      : graph_(graph), dtype_(dtype), training_(training) {}

  void Declare(const ParameterSpec& spec, Tensor value);
  // A state that no gradient reaches, such as an average over steps.
  void DeclareState(const ParameterSpec& spec, Tensor value);
  // Key of this step's random masks, u32[2]. Without one dropout is off.
  void SetKey(Tensor key);

  Graph& graph() const { return graph_; }
  const DtypePolicy& dtype() const { return dtype_; }
  bool training() const { return training_; }
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const std::vector<BlockEnds>& blocks() const { return blocks_; }
  const std::vector<ParameterSpec>& states() const { return states_; }
  // The value after the step of each of states(), by name; invalid: as before.
  Tensor NewState(const std::string& name) const;
  Tensor StateValue(const std::string& name) const { return state_values_.at(name); }
  // Did the model ask for random masks?
  bool uses_key() const { return uses_key_; }

 private:
  friend class Scope;
  Tensor Use(const ParameterSpec& spec);

  Graph& graph_;
  DtypePolicy dtype_;
  bool training_;
  bool uses_key_ = false;
  Tensor mixed_key_;
  std::vector<ParameterSpec> specs_;
  std::map<std::string, Tensor> masters_;  // by name
  std::vector<ParameterSpec> states_;
  std::map<std::string, Tensor> state_values_, new_states_;  // by name
  std::set<std::string> random_sites_;
  std::vector<BlockEnds> blocks_;
};

// A path in the model. Cheap to copy; `scope / "attention"` is the path below.
class Scope {
 public:
  Scope(ParameterStore& store, std::string path) : store_(&store), path_(std::move(path)) {}

  Scope operator/(std::string_view name) const;
  const std::string& path() const { return path_; }
  Graph& graph() const { return store_->graph(); }
  ElementType compute_type() const { return store_->dtype().compute; }
  bool training() const { return store_->training(); }

  // The parameter `name` below this path, converted to the type to compute in unless the options
  // say otherwise.
  Tensor Parameter(std::string_view name, std::vector<int64_t> dims,
                   const ParameterOptions& options) const;
  // The value at the start of the step of a state `name` below this path, in the type of
  // parameters. It is no parameter: the optimizer does not see it, and no gradient passes through
  // it.
  Tensor State(std::string_view name, std::vector<int64_t> dims,
               const Initializer& initializer) const;
  // Its value after the step, once per step; without effect in evaluation.
  void SetState(std::string_view name, Tensor value) const;
  // A mask that is true with the probability; invalid where dropout is off. The path must be used
  // for one mask only.
  Tensor RandomMask(const std::vector<int64_t>& dims, double probability) const;
  // Runs `block` on x. Blocks are what rematerialisation recomputes and between which layers are
  // cut; they do not nest.
  Tensor Block(Tensor x, const std::function<Tensor(const Scope&, Tensor)>& block) const;

 private:
  ParameterStore* store_;
  std::string path_;
};

}  // namespace minka
