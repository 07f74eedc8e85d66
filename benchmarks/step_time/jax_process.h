// The JAX baseline (jax_baseline.py --serve) as a child process that runs steps on request.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace minka {

struct JaxProcessOptions {
  std::string python;  // of an environment with jax
  std::string script;  // jax_baseline.py
  std::vector<std::string> arguments;
  int num_threads = 0;  // that collectives run in; 0: as many as jaxlib takes by itself
};

struct JaxSteps {
  std::vector<double> seconds;  // of each step
  double first_loss = 0;        // of the sharding's very first step
};

// Owns the child: it is asked to quit, and waited for, on destruction. Move-only.
class JaxProcess {
 public:
  // Returns when the child is ready.
  static absl::StatusOr<JaxProcess> Start(const JaxProcessOptions& options);
  JaxProcess(JaxProcess&& other) noexcept;
  JaxProcess& operator=(JaxProcess&&) = delete;
  ~JaxProcess();

  int64_t num_parameters() const { return num_parameters_; }
  const std::vector<std::string>& shardings() const { return shardings_; }
  // The first call for a sharding also compiles it. Aborted: the child has aborted, as jaxlib does
  // where it waits for itself; Unavailable: it has ended otherwise.
  absl::StatusOr<JaxSteps> Run(const std::string& sharding, int num_steps);

 private:
  JaxProcess(pid_t pid, FILE* requests, FILE* answers)
      : pid_(pid), requests_(requests), answers_(answers) {}
  // One line of JSON.
  absl::StatusOr<nlohmann::json> ReadAnswer();
  // Precondition: it gives no more answers.
  absl::Status WhyItEnded();

  pid_t pid_;  // -1: has ended, or is another's
  FILE* requests_;
  FILE* answers_;
  int64_t num_parameters_ = 0;
  std::vector<std::string> shardings_;
};

}  // namespace minka
