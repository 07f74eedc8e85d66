// Compiled programs and their launches.
//
//   ASSIGN_OR_RETURN(Executable step, Executable::Compile(client, ExportHlo(module), {.num_replicas
//   = 8})); ASSIGN_OR_RETURN(Launch launch, step.Execute(arguments));   //
//   arguments[replica][parameter]; returns at once RETURN_IF_ERROR(launch.Await()); //
//   launch.results[replica][output]
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/ir/shape.h"
#include "minka/runtime/pjrt/buffer.h"
#include "minka/runtime/pjrt/client.h"
#include "minka/runtime/pjrt/event.h"
#include "minka/runtime/pjrt/platform.h"

namespace minka::pjrt {

struct CompileOptions {
  // The program runs on that many devices at once, every one with its own arguments; collectives
  // name them by number.
  int num_replicas = 1;
  // Replica r runs on devices[r], a position in Client::devices(); empty: the first ones.
  std::vector<int> devices;
  // On top of what minka always sets (RequiredOverrides).
  Overrides overrides;
};

// Per device, as the compiler lays memory out.
struct MemoryStatistics {
  int64_t argument_bytes = 0;
  int64_t output_bytes = 0;
  int64_t alias_bytes = 0;  // of the outputs, in donated arguments' memory
  int64_t temp_bytes = 0;   // held while it runs
  int64_t generated_code_bytes = 0;

  // All that is held while it runs, code apart. Not the plugin's "peak", which is wrong on CPU.
  int64_t total_bytes() const { return argument_bytes + output_bytes - alias_bytes + temp_bytes; }
};

// One asynchronous run on all replicas.
struct Launch {
  std::vector<std::vector<Buffer>>
      results;  // [replica][output]; usable at once as arguments of the next launch
  std::vector<Event> completions;  // per replica

  // Blocks until all replicas are done; the error of the first replica that failed.
  absl::Status Await() const;
};

// Owns a loaded executable; move-only. Const calls are thread-safe. Launches of one client's
// multi-device executables run in the order of their Execute calls; two threads that launch
// collectives on common devices must agree on an order.
class Executable {
 public:
  // Compiles serialised HloModuleProto bytes whose entry parameters are arrays. Some malformed
  // modules abort inside XLA: verify first. A parameter that the module aliases to a result, or
  // donates, is consumed by every launch.
  static absl::StatusOr<Executable> Compile(const Client& client, std::string_view module_bytes,
                                            const CompileOptions& options);

  // Loads what Serialize made with the same plugin on the same kind of machine; it keeps its
  // devices.
  static absl::StatusOr<Executable> Deserialize(const Client& client, std::string_view bytes);
  absl::StatusOr<std::string> Serialize() const;

  Executable(Executable&&) noexcept;
  Executable& operator=(Executable&&) noexcept;
  ~Executable();

  const std::string& name() const;
  int num_replicas() const { return static_cast<int>(devices().size()); }
  const std::vector<int>& devices() const;  // by replica
  int num_parameters() const;
  const Shape& parameter_shape(int parameter) const;
  const std::vector<int>& donated_parameters() const;  // ascending
  int num_outputs() const;

  const MemoryStatistics& memory() const;
  // The compiler's estimates by name, such as "flops", "bytes accessed".
  absl::StatusOr<std::map<std::string, double>> CostAnalysis() const;
  // HloModuleProto bytes of what really runs: after fusion, scheduling and layout assignment.
  absl::StatusOr<std::string> OptimizedModule() const;
  // Equal for equal program, options and compiler.
  absl::StatusOr<std::string> Fingerprint() const;

  // Launches on all replicas; arguments[replica][parameter]. Checks every argument of every replica
  // first, because one replica that refuses leaves the others waiting in their first collective
  // until the process is aborted: on an error of this check nothing was launched and nothing is
  // donated.
  absl::StatusOr<Launch> Execute(std::span<const std::vector<Buffer*>> arguments) const;

 private:
  struct State;
  explicit Executable(std::unique_ptr<const State> state);

  std::unique_ptr<const State> state_;
};

}  // namespace minka::pjrt
