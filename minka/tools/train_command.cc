// `minka train`: plans a named model and trains it on this machine's devices.
#include <algorithm>
#include <cctype>
#include <memory>

#include "fmt/format.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/driver/check.h"
#include "minka/driver/describe_pipeline.h"
#include "minka/driver/prepare.h"
#include "minka/report/format.h"
#include "minka/report/pipeline_table.h"
#include "minka/report/plan_table.h"
#include "minka/tools/child_process.h"
#include "minka/tools/command.h"
#include "minka/tools/local_cluster.h"
#include "minka/tools/planning_flags.h"
#include "minka/tools/quantities.h"
#include "minka/tools/run_report.h"
#include "minka/tools/step_source.h"
#include "minka/tools/worker_flags.h"

namespace minka {
namespace {

constexpr int kBarWidth = 24;
constexpr size_t kMeanOfLosses = 50;

struct TrainFlags {
  StepSource source;
  PlanningFlags planning{.cost_model = "measured"};
  WorkerFlags workers;
  std::string data, out = "plan.json", dump_to, plugin;
  int64_t steps = 0, evaluate_every = 0;
  double minutes = 0;
  int check_steps = 0, sample_bytes = 300;
  std::optional<uint64_t> seed;
  Checkpoints checkpoints;
  bool json = false;
};

// "60%" -> 0.6; nullopt: no percentage.
absl::StatusOr<std::optional<double>> ParsePart(const std::string& text) {
  if (!text.ends_with('%')) return std::nullopt;
  double percent = 0;
  if (!CLI::detail::lexical_cast(text.substr(0, text.size() - 1), percent) || percent <= 0 ||
      percent > 100) {
    return InvalidArgument(
        "--memory-limit {} is no part of what data parallelism needs; write for "
        "example 60%",
        text);
  }
  return percent / 100;
}

absl::StatusOr<TrainOptions> OptionsOf(const TrainFlags& flags) {
  if (IsModuleFile(flags.source.model)) {
    return InvalidArgument("train takes a named model; minka run runs module files such as {}",
                           flags.source.model);
  }
  if (flags.minutes < 0) return InvalidArgument("--minutes {} is below 0", flags.minutes);
  if (flags.steps == 0 && flags.minutes == 0) {
    return InvalidArgument("how long to train? Give --steps 100 or --minutes 2");
  }
  TrainOptions options{.model = flags.source.model,
                       .data = {.path = flags.data, .seed = flags.seed},
                       .length = {.num_steps = flags.steps,
                                  .minutes = flags.minutes,
                                  .evaluate_every = flags.evaluate_every},
                       .checkpoints = flags.checkpoints,
                       .check_steps = flags.check_steps,
                       .sample_bytes = flags.sample_bytes,
                       .plugin_path = flags.plugin,
                       .plan_path = flags.out,
                       .dump_dir = flags.dump_to};
  ASSIGN_OR_RETURN(options.model_options, ModelOptionsOf(flags.source));
  PlanningFlags planning = flags.planning;
  ASSIGN_OR_RETURN(options.memory_limit_of_data, ParsePart(planning.memory_limit));
  if (options.memory_limit_of_data) planning.memory_limit.clear();
  RETURN_IF_ERROR(CheckRunsLocally("train", planning));
  const bool names_meshes = !planning.meshes.empty() || !planning.submeshes.empty() ||
                            (planning.dp && planning.op && planning.pp);
  if (!names_meshes && !planning.num_devices) {
    planning.num_devices = planning.cluster == kLocalCluster ? 8 : 1;
  }
  ASSIGN_OR_RETURN(options.request, RequestOf(planning));
  const MicroBatchOptions& micro_batches = options.request.micro_batches;
  if (micro_batches.per_micro_batch && micro_batches.num_micro_batches == kChooseMicroBatches) {
    return InvalidArgument(
        "--per-micro-batch lets the number of micro-batches say what is computed, which is to be "
        "the same wherever training goes on; give it with --micro-batches");
  }
  // The profile is Train's, which first refuses what it cannot do.
  RETURN_IF_ERROR(AddLocalGpus(flags.plugin, options.request));
  if (options.memory_limit_of_data) options.request.search.memory_limit_bytes.reset();
  RETURN_IF_ERROR(CheckTraceFlag(flags.workers.trace, options.request.pipeline.has_value()));
  options.num_devices = options.request.cluster.num_devices();
  options.traces_step = !flags.workers.trace.empty();
  if (!flags.workers.in_process)
    options.workers = {.hosts_path = flags.workers.hosts, .plugin_path = flags.plugin};
  options.request.options = ToOptions(flags.source);
  options.request.options.merge(ToOptions(flags.planning));
  options.request.on_progress = [](const std::string& what, double seconds, double gap) {
    ReportPart(what);
    ShowStatus("plan " + DescribeProgress(what, seconds, gap));
  };
  return options;
}

std::string Bar(double fraction) {
  const int full = std::clamp(static_cast<int>(fraction * kBarWidth), 0, kBarWidth);
  return fmt::format("[{}{}]", std::string(full, '#'), std::string(kBarWidth - full, '-'));
}

std::string MinutesText(double seconds) {
  return fmt::format("{}:{:02d}", static_cast<int>(seconds) / 60, static_cast<int>(seconds) % 60);
}

// Shows how training goes: one line that changes on a terminal, a line per evaluation elsewhere.
class ProgressPrinter {
 public:
  void Print(const TrainProgress& progress) {
    num_losses_ = std::min(num_losses_ + 1, kMeanOfLosses);
    mean_ += (progress.loss - mean_) / static_cast<double>(num_losses_);
    if (progress.held_out_loss) held_out_ = progress.held_out_loss;
    ReportPart(fmt::format("step {}", progress.step + 1));
    std::string line = fmt::format("{} {}  step {}  loss {:.3f}", Bar(progress.fraction),
                                   MinutesText(progress.seconds), progress.step, mean_);
    if (held_out_) line += fmt::format("  held out {:.3f}", *held_out_);
    line += fmt::format("  {:.0f} tokens/s", progress.tokens_per_second);
    ShowStatus(line);
    const bool is_news = progress.held_out_loss || progress.fraction >= 1;
    if (!HasTerminal() && is_news) fmt::print(stderr, "{}\n", line);
  }

 private:
  // Of this run's last steps, older ones fading; those before a resumed checkpoint are not known.
  double mean_ = 0;
  size_t num_losses_ = 0;
  std::optional<double> held_out_;
};

std::string Printable(const std::string& sample) {
  std::string text = "  | ";
  for (const char c : sample) {
    if (c == '\n') {
      text += "\n  | ";
    } else {
      text += std::isprint(static_cast<unsigned char>(c)) ? c : '?';
    }
  }
  return text + "\n";
}

double MeanOfLast(const std::vector<double>& losses) {
  const size_t count = std::min(losses.size(), kMeanOfLosses);
  double sum = 0;
  for (size_t i = losses.size() - count; i < losses.size(); ++i) sum += losses[i];
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

RunFigures FiguresOf(const TrainReport& report) {
  return {.step_times = report.step_times,
          .num_warm_up = 1,
          .measured_peak_memory_bytes = report.measured_peak_memory_bytes,
          .total_allocation_bytes = report.total_allocation_bytes,
          .create_state_seconds = report.create_state_seconds,
          .compile_seconds = report.compile_seconds};
}

std::string Summary(const TrainFlags& flags, const TrainReport& report) {
  const bool is_text = report.bigram_entropy.has_value();
  std::string text;
  if (!report.resumed_from.empty()) {
    text +=
        fmt::format("\nresumed {}, made after step {}\n", report.resumed_from, report.first_step);
  }
  for (const std::string& note : report.notes) text += fmt::format("  note: {}\n", note);
  text += fmt::format("\ntrained {} steps in {:.0f} s on {}: {:.0f} {}/s\n",
                      report.num_steps - report.first_step, report.seconds, report.data_source,
                      report.tokens_per_second, is_text ? "tokens" : "examples");
  text += fmt::format("  training loss  {:.3f} (mean of the last {} steps)\n",
                      MeanOfLast(report.losses), std::min(report.losses.size(), kMeanOfLosses));
  if (report.held_out_loss) {
    text += fmt::format("  held-out loss  {:.3f}{}, on the last tenth of the data\n",
                        *report.held_out_loss, is_text ? " nats per byte" : "");
  }
  if (report.held_out_accuracy) {
    text += fmt::format("  held-out accuracy  {:.1f} %\n", 100 * *report.held_out_accuracy);
  }
  if (is_text) {
    text +=
        fmt::format("  bigram entropy {:.3f} nats per byte: what one byte of context can give\n",
                    *report.bigram_entropy);
  }
  text += report.pipeline ? PredictedAndMeasured(report.pipeline->plan, !flags.workers.in_process,
                                                 FiguresOf(report))
                          : PredictedAndMeasured(report.plan, FiguresOf(report));
  if (report.memory_limit_bytes) {
    const int64_t needed =
        report.pipeline ? report.pipeline->plan.peak_memory_bytes : report.plan.peak_memory_bytes;
    const bool over = needed > *report.memory_limit_bytes;
    text +=
        fmt::format("  memory limit   {} per device{}\n", FormatBytes(*report.memory_limit_bytes),
                    over ? ": the plan was estimated to fit, the compiled program does not" : "");
  }
  if (report.check) text += DescribeCheck(*report.check);
  if (!report.sample.empty()) text += "sample of generated text:\n" + Printable(report.sample);
  if (!report.saved_to.empty()) {
    text += fmt::format("the last checkpoint is {0}; go on from it with: --resume {0}\n",
                        report.saved_to);
  }
  if (!flags.out.empty()) {
    text += fmt::format("the plan is in {0}; look at it with: minka inspect {0}\n", flags.out);
  }
  return text;
}

std::string JsonOf(const TrainReport& report) {
  auto json = report.pipeline ? RunJson(*report.pipeline, FiguresOf(report))
                              : RunJson(report.plan, report.prepared.module, FiguresOf(report));
  json["first_step"] = report.first_step;
  json["num_steps"] = report.num_steps;
  if (!report.resumed_from.empty()) json["resumed_from"] = report.resumed_from;
  if (!report.saved_to.empty()) json["saved_to"] = report.saved_to;
  json["resume_notes"] = report.notes;
  json["training_seconds"] = report.seconds;
  json["tokens_per_second"] = report.tokens_per_second;
  json["training_loss"] = MeanOfLast(report.losses);
  json["losses"] = report.losses;
  if (report.held_out_loss) json["held_out_loss"] = *report.held_out_loss;
  if (report.held_out_accuracy) json["held_out_accuracy"] = *report.held_out_accuracy;
  if (report.bigram_entropy) json["bigram_entropy"] = *report.bigram_entropy;
  json["data"] = report.data_source;
  if (report.memory_limit_bytes) json["memory_limit_bytes"] = *report.memory_limit_bytes;
  return DumpJson(json);
}

// A schedule that ends does so with the training.
void EndScheduleWithTraining(TrainFlags& flags) {
  UpdateOptions& update = flags.source.update;
  const std::string schedule = update.schedule.value_or("constant");
  const bool ends = schedule == "linear" || schedule == "cosine";
  if (ends && !update.decay_updates && flags.steps > 0) update.decay_updates = flags.steps;
}

absl::Status ShowPipeline(const PlannedPipeline& pipeline, const TrainFlags& flags) {
  if (!flags.workers.trace.empty()) {
    ASSIGN_OR_RETURN(const Timeline timeline, PredictTimeline(pipeline));
    RETURN_IF_ERROR(WriteFile(flags.workers.trace, ChromeTrace(timeline)));
  }
  if (flags.json) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string table, DescribePipeline(pipeline));
  return Print(table + "\n");
}

absl::Status RunTrain(TrainFlags flags) {
  EndScheduleWithTraining(flags);
  if (flags.json && flags.out == "-") {
    return InvalidArgument("--json and --out - both want standard output; give --out a file");
  }
  ASSIGN_OR_RETURN(const TrainOptions options, OptionsOf(flags));
  ASSIGN_OR_RETURN(const SourceStep source, LoadStep(flags.source));
  ProgressPrinter printer;
  TrainEvents events{
      .on_phase =
          [](std::string_view phase) {
            ReportPhase(phase);
            ShowStatus(std::string(phase) + " ...");
          },
      .on_progress = [&printer](const TrainProgress& progress) { printer.Print(progress); }};
  absl::Status printed;
  events.on_plan = [&](const PlanResult& considered, const Plan& plan) {
    ClearStatus();
    if (flags.json) return;
    const absl::StatusOr<Step> prepared = Prepare(source.step, PreparationOf(plan));
    printed = prepared.ok()
                  ? Print(DescribeCandidates(considered) + PlanTable(*prepared, plan) + "\n")
                  : prepared.status();
  };
  events.on_pipeline = [&](const PlannedPipeline& pipeline) {
    ClearStatus();
    printed = ShowPipeline(pipeline, flags);
  };
  absl::StatusOr<TrainReport> report = Train(options, events);
  ClearStatus();
  RETURN_IF_ERROR(report.status());
  RETURN_IF_ERROR(printed);
  if (!report->trace.empty()) {
    ASSIGN_OR_RETURN(const Timeline timeline, PredictTimeline(*report->pipeline));
    RETURN_IF_ERROR(WriteFile(flags.workers.trace, ChromeTrace(timeline, report->trace)));
  }
  return Print(flags.json ? JsonOf(*report) : Summary(flags, *report));
}

}  // namespace

namespace {

void AddCheckpointFlags(CLI::App& command, Checkpoints& checkpoints) {
  const char* const group = "Checkpoints";
  CLI::Option* const save =
      command
          .add_option("--save", checkpoints.save_dir,
                      "Folder to save checkpoints to, one at the end. Default: none are saved")
          ->group(group);
  command
      .add_option("--every", checkpoints.save_every,
                  "Save after each so many steps, too. Default: only at the end")
      ->check(WholeNumberFrom<int64_t>(1))
      ->needs(save)
      ->group(group);
  command.add_option("--keep", checkpoints.keep, "Checkpoints of this run that stay, the newest")
      ->capture_default_str()
      ->check(WholeNumberFrom(1))
      ->needs(save)
      ->group(group);
  command
      .add_option(
          "--resume", checkpoints.resume_dir,
          "Checkpoint to go on from, or a folder of them, of which the newest is taken; mesh "
          "and method may be others, --steps counts from the beginning. Default: begin anew")
      ->group(group);
}

}  // namespace

void AddTrainCommand(CLI::App& app, CommandLine& line) {
  const auto flags = std::make_shared<TrainFlags>();
  CLI::App* const command = app.add_subcommand(
      "train", "Plan a named model and train it on this machine's devices, on real text or images");
  command
      ->add_option(
          "model", flags->source.model,
          "A named model: gpt-tiny, moe-tiny (bytes of text), wresnet-tiny, unet-tiny (images)")
      ->required();
  command->add_option("--data", flags->data,
                      "File to train on: bytes for models of text, lines of 64 pixels and a digit "
                      "for models of images. Default: the King James text of the Debian package "
                      "bible-kjv, the digits of the Python package scikit-learn");
  command->add_option("--steps", flags->steps, "Steps to train. Default: as --minutes says")
      ->check(WholeNumberFrom<int64_t>(1));
  command->add_option("--minutes", flags->minutes, "Minutes to train. Default: as --steps says");
  command
      ->add_option("--evaluate-every", flags->evaluate_every,
                   "Steps between two evaluations on held-out text. Default: ten times in all")
      ->check(WholeNumberFrom<int64_t>(1));
  command
      ->add_option("--check", flags->check_steps,
                   "Compare so many steps with one device first; differences beyond what rounding "
                   "explains are an error")
      ->capture_default_str()
      ->check(WholeNumberFrom(0));
  command->add_option("--sample", flags->sample_bytes, "Bytes of text to generate at the end")
      ->capture_default_str()
      ->check(WholeNumberFrom(0));
  command
      ->add_option("--seed", flags->seed,
                   "Seed of parameters, batches and dropout. Default: that of the checkpoint to "
                   "resume, else 1")
      ->check(WholeNumberFrom<uint64_t>(0));
  AddCheckpointFlags(*command, flags->checkpoints);
  AddPlanningFlags(*command, flags->planning,
                   ", or a part of what data parallelism needs, such as 60%. Default: no limit");
  AddModelFlags(*command, flags->source);
  command->add_option("--out", flags->out, "Where to write the plan")->capture_default_str();
  AddWorkerFlags(*command, flags->workers);
  command->add_option("--dump-to", flags->dump_to,
                      "Folder for every step of the compiler as text. Default: not written");
  command->add_option("--plugin", flags->plugin,
                      "PJRT plugin. Default: MINKA_PJRT_PLUGIN, else searched");
  command->add_flag("--json", flags->json, "Print one JSON object instead of tables");
  command->callback([flags, &line] {
    if (!IsChild()) {
      line.exit_code = RunInChildAndReport(line.arguments);
    } else {
      Finish(RunTrain(*flags), line);
    }
  });
}

}  // namespace minka
