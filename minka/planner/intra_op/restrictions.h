// What method, limits and pins leave of the strategies of single operations.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/planner/intra_op/intra_op.h"
#include "minka/sharding/op_rule.h"
#include "minka/sharding/sharding.h"

namespace minka {

// Do method, limits and mesh agree with each other? Errors name the two that do not.
absl::Status CheckCompatible(const IntraOpOptions& options, const Mesh& mesh);

// Of result 0 of one operation.
struct Restriction {
  enum class Split {
    kAny,
    kSome,  // over at least one axis, where one divides a dimension
    kMost,  // over as many devices as divide it
  };
  std::optional<Sharding> exact;
  Split split = Split::kAny;
  // The factor that counts examples is split over this axis and no other.
  int batch_factor = -1, batch_axis = -1;
  std::vector<int> whole_factors;  // split over no axis, ascending
  std::string tensor;              // whose, for messages

  bool empty() const {
    return !exact && split == Split::kAny && batch_factor < 0 && whole_factors.empty();
  }
  // Equal for restrictions that leave the same strategies.
  std::string Key(const Mesh& mesh) const;
};

class Restrictions {
 public:
  // Errors name pins and axes that cannot be read, and options that disagree.
  static absl::StatusOr<Restrictions> Create(const Step& step, const Mesh& mesh,
                                             const IntraOpOptions& options);

  // Of a parameter: empty where everything is left; errors name the pin that does not fit.
  absl::StatusOr<Restriction> OfParameter(InstructionId id);
  // Of any operation: what limits on the dimensions of examples ask of it.
  void AddOfExamples(InstructionId id, const OpRule& rule, Restriction& restriction) const;
  // Of a sum over micro-batches.
  Restriction OfSum(InstructionId id) const;
  // The shardings in which values are kept, where a pin names the result of the step or, if it
  // names no parameter and no result, the operation (by its name or its op_name; result 1 of an
  // operation with several is its name with "#1").
  absl::StatusOr<std::map<Value, Sharding>> OfValues();
  // After the others: does every pin name something?
  absl::Status CheckAllUsed() const;
  // After the others: notes which pins the method gave way to.
  void NoteExceptions();
  // For methods that may split every dimension: notes those of parameters that an axis of the mesh
  // does not divide, one note for each size.
  void NoteUndivided();
  // Tensors that stay whole though method or limits want them split, dimensions that cannot be
  // split, and exceptions.
  const std::vector<std::string>& notes() const { return notes_; }

  // Erases the strategies that do not obey; errors if none is left.
  absl::Status Keep(const Restriction& restriction, const OpRule& rule,
                    std::vector<Strategy>& strategies) const;
  // Notes a tensor that is to be split where no strategy left does.
  void NoteIfWhole(const Restriction& restriction, const Shape& shape, const OpRule& rule,
                   const std::vector<Strategy>& strategies);

 private:
  struct Pin {
    std::string glob;
    std::string text;
    Sharding sharding;
    bool names_parameters = false, names_results = false;
    bool used = false;
    std::vector<std::string> exceptions;  // state that lies otherwise than the method has it
  };

  Restrictions(const Step& step, const Mesh& mesh, const IntraOpOptions& options);
  absl::Status ParsePins();
  // A pin and what it wants of a tensor.
  struct Wanted {
    Pin* pin = nullptr;
    Sharding sharding;
  };
  absl::StatusOr<std::optional<Wanted>> PinOf(const ParameterInfo& info, const Shape& shape);
  absl::Status PinResults(std::map<Value, Sharding>& values);
  absl::Status PinOperations(std::map<Value, Sharding>& values);
  absl::Status Set(const Pin& pin, Value value, const std::string& name,
                   std::map<Value, Sharding>& values) const;
  absl::Status CheckPin(const Wanted& wanted, InstructionId parameter,
                        const ParameterInfo& info) const;
  absl::Status CheckPinOnExamples(const Pin& pin, const Sharding& sharding, Value value,
                                  const std::string& name) const;
  absl::Status CheckPinOnBatch(const Pin& pin, const Sharding& sharding, const std::string& name,
                               const Shape& shape, int batch_dim) const;
  absl::StatusOr<Restriction> OfBatch(const ParameterInfo& info, const Shape& shape) const;
  void KeepBatchAxis(const Restriction& restriction, std::vector<Strategy>& strategies) const;
  Restriction OfState(const ParameterInfo& info, bool is_optimizer_state) const;

  const Step& step_;
  const Mesh& mesh_;
  const IntraOpOptions& options_;
  const bool has_micro_batches_;
  int batch_axis_ = -1;
  std::vector<Pin> pins_;
  std::vector<bool> is_optimizer_state_;  // by parameter
  // See FindExampleDims; empty: no limit asks.
  std::vector<std::vector<ExampleDims>> example_dims_;
  std::vector<std::string> notes_;
};

// By parameter: state that the apply phase alone reads.
std::vector<bool> FindOptimizerState(const Step& step);

// Does the method treat the mesh as one axis over which the batch is split?
bool IsDataParallel(Method method);

}  // namespace minka
