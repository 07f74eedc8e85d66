// Trains a named model on local devices: plans, compiles, runs steps on real text or images,
// measures.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/plan_step.h"
#include "minka/driver/start_session.h"
#include "minka/models/registry.h"
#include "minka/oracle/oracle.h"
#include "minka/plan/plan.h"
#include "minka/runtime/mesh/mesh_executor.h"

namespace minka {

struct TrainingData {
  // Text for models that read tokens, digits for models that read images (see digits_data.h);
  // empty: the built-in ones. Other models get random inputs.
  std::string path;
  std::optional<uint64_t> seed;  // nullopt: the resumed checkpoint's, else 1
};

struct TrainingLength {
  int64_t num_steps = 0;       // those before a resumed checkpoint included; 0: by the minutes
  double minutes = 0;          // of this run; 0: no limit; at least one of the two is given
  int64_t evaluate_every = 0;  // steps; 0: ten times in all
};

// A run that resumes goes on as the one that saved would have: with the same batches and random
// keys, on any mesh and by any method. It is the same run where it also saves to the folder that it
// resumes from. What it saves must be the newest of its folder: a folder with checkpoints of more
// steps than the one resumed is refused.
struct Checkpoints {
  std::string save_dir;    // empty: none are saved
  int64_t save_every = 0;  // steps; 0: at the end only, where one is saved always
  int keep = 3;            // the newest ones of this run; other runs' are left alone
  std::string resume_dir;  // a checkpoint, or a folder of them, of which the newest is resumed
};

struct TrainOptions {
  std::string model = "gpt-tiny";
  ModelOptions model_options;
  TrainingData data;
  TrainingLength length;
  Checkpoints checkpoints;
  int num_devices = 8;
  // What is asked of the plan; the cluster is Local where the request names none. A measured cost
  // model without a calibration profiles the machine or takes an earlier profile.
  PlanRequest request;
  // Where the meshes run; nullopt: in this process, where those of a pipeline take turns.
  std::optional<WorkerOptions> workers;
  bool traces_step = false;  // of a pipeline, see TrainReport::trace
  // Limits memory to this part of what data parallelism needs, where request has no limit.
  std::optional<double> memory_limit_of_data;
  int check_steps = 0;                           // compares so many steps with one device first
  int sample_bytes = 0;                          // of text generated at the end
  std::string plugin_path, plan_path, dump_dir;  // empty: searched, not written, not written
};

struct TrainProgress {
  int64_t step = 0;     // done so far
  double fraction = 0;  // of steps or time, whichever ends first
  double seconds = 0;
  double loss = 0;
  std::optional<double> held_out_loss;  // where it was computed after this step
  double tokens_per_second = 0;
};

struct TrainEvents {
  // What happens now: "profile ...", "plan ...", the compiler's steps, "train".
  std::function<void(std::string_view phase)> on_phase;
  // Before the first step: everything considered, and the plan that runs.
  std::function<void(const PlanResult& considered, const Plan& plan)> on_plan;
  std::function<void(const PlannedPipeline& pipeline)> on_pipeline;  // instead, of a pipeline
  std::function<void(const TrainProgress& progress)> on_progress;
};

struct TrainReport {
  Plan plan;
  std::optional<PlannedPipeline> pipeline;  // in its place
  Step prepared;
  std::optional<int64_t> memory_limit_bytes;
  int64_t first_step = 0;  // steps done before this run
  int64_t num_steps = 0;   // done at its end
  double seconds = 0;      // of training, evaluations included
  double tokens_per_second = 0;
  std::vector<double> losses;  // by step of this run
  std::optional<double> held_out_loss;
  std::optional<double> held_out_accuracy;  // of classifiers
  std::optional<double> bigram_entropy;     // of the held-out text
  RunTimes step_times;
  int64_t measured_peak_memory_bytes = 0, total_allocation_bytes = 0;
  double create_state_seconds = 0, compile_seconds = 0;
  std::string data_source;
  std::string resumed_from, saved_to;  // checkpoints; empty: none
  std::vector<std::string> notes;      // what differs from the run that is resumed
  std::string sample;                  // generated text
  std::optional<OracleReport> check;
  // By mesh, of the third step of a pipeline, where it was asked for and there is one.
  std::vector<std::vector<TracedEvent>> trace;
};

absl::StatusOr<TrainReport> Train(const TrainOptions& options, const TrainEvents& events);

}  // namespace minka
