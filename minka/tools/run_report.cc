#include "minka/tools/run_report.h"

#include <algorithm>

#include "fmt/format.h"
#include "minka/base/core_distance.h"
#include "minka/report/format.h"
#include "minka/report/table.h"

namespace minka {
namespace {

std::string Difference(double predicted, double measured) {
  if (measured <= 0) return "";
  return fmt::format(" (prediction {:+.1f} %)", 100 * (predicted / measured - 1));
}

// What happened to this machine's cores that tells why steps took other times.
std::string WhatHappened(const RunFigures& figures) {
  constexpr double kManyStolen = 0.05;
  std::string text;
  if (figures.stolen_share > kManyStolen) {
    text += fmt::format(
        "; meanwhile the host of this virtual machine gave {:.0f} % of its cores' time to others",
        100 * figures.stolen_share);
  }
  const double now_ns = figures.core_round_trip_ns, then_ns = figures.profiled_core_round_trip_ns;
  if (!IsSameCoreDistance(now_ns, then_ns)) {
    text += fmt::format(
        "; the cores answer each other in {:.0f} ns, during the profile in {:.0f}, as where the "
        "host of a virtual machine moves them: memory and collectives take other times",
        now_ns, then_ns);
  }
  return text;
}

std::string MeasuredTime(double predicted_us, const RunFigures& figures) {
  const RunStatistics warm = figures.step_times.Warm(figures.num_warm_up);
  const std::string first =
      figures.step_times.us.empty()
          ? ""
          : fmt::format("; the first step, cold, {}", FormatTime(figures.step_times.us.front()));
  if (warm.num_runs == 0) return "no warm step measured" + first;
  return fmt::format("{} measured{}: median of {} warm step{}, half of them in {} to {}{}{}",
                     FormatTime(warm.median_us), Difference(predicted_us, warm.median_us),
                     warm.num_runs, warm.num_runs == 1 ? "" : "s",
                     FormatTime(warm.lower_quartile_us), FormatTime(warm.upper_quartile_us), first,
                     WhatHappened(figures));
}

void AddFigures(double predicted_us, const RunFigures& figures, nlohmann::ordered_json& json) {
  json["predicted_step_time_us"] = predicted_us;
  const RunStatistics warm = figures.step_times.Warm(figures.num_warm_up);
  const auto if_warm = [&](double us) -> nlohmann::ordered_json {
    return warm.num_runs > 0 ? nlohmann::ordered_json(us) : nullptr;
  };
  json["num_measured_steps"] = warm.num_runs;
  json["measured_step_time_us"] = if_warm(warm.mean_us);
  json["measured_step_time_std_us"] = if_warm(warm.std_us);
  json["measured_step_time_median_us"] = if_warm(warm.median_us);
  json["measured_step_time_quartiles_us"] = {if_warm(warm.lower_quartile_us),
                                             if_warm(warm.upper_quartile_us)};
  json["stolen_share"] = figures.stolen_share;
  json["core_round_trip_ns"] = figures.core_round_trip_ns;
  json["first_step_time_us"] = figures.step_times.us.empty()
                                   ? nullptr
                                   : nlohmann::ordered_json(figures.step_times.us.front());
  json["measured_peak_memory_bytes"] = figures.measured_peak_memory_bytes;
  json["total_allocation_bytes"] = figures.total_allocation_bytes;
  const auto median = [](const std::vector<double>& us) { return StatisticsOf(us).median_us; };
  json["host_time_us"] = {{"inputs", median(figures.host_times.inputs_us)},
                          {"dispatch", median(figures.host_times.dispatch_us)},
                          {"wait", median(figures.host_times.wait_us)},
                          {"fetch", median(figures.host_times.fetch_us)}};
  json["prepare_input_seconds"] = figures.prepare_input_seconds;
  json["create_state_seconds"] = figures.create_state_seconds;
  json["compile_seconds"] = figures.compile_seconds;
}

}  // namespace

std::string PredictedAndMeasured(const Plan& plan, const RunFigures& figures) {
  return fmt::format(
      "  step time      {} predicted, {}\n"
      "  peak memory    {} predicted, {} measured per device{}\n",
      FormatTime(plan.step_time_us), MeasuredTime(plan.step_time_us, figures),
      FormatBytes(plan.peak_memory_bytes), FormatBytes(figures.measured_peak_memory_bytes),
      Difference(static_cast<double>(plan.peak_memory_bytes),
                 static_cast<double>(figures.measured_peak_memory_bytes)));
}

std::string PredictedAndMeasured(const PipelinePlan& plan, bool has_workers,
                                 const RunFigures& figures) {
  double predicted_us = plan.step_time_us;
  if (!has_workers) {
    predicted_us = 0;
    for (const PipelineStagePlan& stage : plan.stages) {
      predicted_us +=
          stage.apply_us + plan.num_micro_batches *
                               (stage.forward_us + stage.backward_us + stage.weight_gradient_us);
    }
  }
  return fmt::format(
      "  step time      {} predicted{}, {}\n"
      "  peak memory    {} predicted, {} measured per device{}\n",
      FormatTime(predicted_us), has_workers ? "" : " where meshes take turns as in this process",
      MeasuredTime(predicted_us, figures), FormatBytes(plan.peak_memory_bytes),
      FormatBytes(figures.measured_peak_memory_bytes),
      Difference(static_cast<double>(plan.peak_memory_bytes),
                 static_cast<double>(figures.measured_peak_memory_bytes)));
}

nlohmann::ordered_json RunJson(const Plan& plan, const Module& module, const RunFigures& figures) {
  auto json = nlohmann::ordered_json::parse(PlanToJson(plan, module));
  AddFigures(plan.step_time_us, figures, json);
  return json;
}

nlohmann::ordered_json RunJson(const PlannedPipeline& pipeline, const RunFigures& figures) {
  auto json = nlohmann::ordered_json::parse(PipelinePlanToJson(pipeline.plan, pipeline.modules()));
  AddFigures(pipeline.plan.step_time_us, figures, json);
  return json;
}

std::string DumpJson(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace minka
