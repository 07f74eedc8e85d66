// Parallel plans of Alpa's benchmark suites, found by its search on AWS p3.16xlarge hosts
// (benchmark/alpa/suite_auto_*.py of its repository).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace minka {

struct PublishedStage {
  int num_layers = 1;         // of those that the model is parted into
  int rows = 1, columns = 1;  // of its mesh
  bool splits_batch = false;  // examples over the rows of the mesh and nothing else
};

// Every layer is recomputed.
struct PublishedSolution {
  std::string model, cluster;
  int64_t global_batch = 1024, num_micro_batches = 1;
  std::vector<PublishedStage> stages;
  bool per_micro_batch = false;  // batch norms
  bool is_f16 = true;
  bool prefers_reduce_scatter = true;
  double step_seconds = 0;      // as measured; 0: not published
  double memory_gibibytes = 0;  // of the fullest device, as measured; 0: not published

  int num_layers() const;
};

// "gpt-2.6b on p3.16xlarge:1, batch 32 in 4"
std::string NameOf(const PublishedSolution& solution);

std::vector<PublishedSolution> PublishedSolutions();
// The GPTs among them, of which step times are published, and the case of its regression test.
std::vector<PublishedSolution> PublishedPoints();

}  // namespace minka
