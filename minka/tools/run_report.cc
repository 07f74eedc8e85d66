#include "minka/tools/run_report.h"

#include <algorithm>

#include "fmt/format.h"
#include "minka/report/format.h"
#include "minka/report/table.h"

namespace minka {
namespace {

constexpr size_t kShownOutputs = 10;
constexpr double kFarOff = 1e300;

std::string Difference(double predicted, double measured) {
  if (measured <= 0) return "";
  return fmt::format(" (prediction {:+.1f} %)", 100 * (predicted / measured - 1));
}

// How much of what is allowed is used up; what is wrong by another rule comes first.
double Ratio(const OutputComparison& output) {
  const Norms& norms = output.norms;
  const bool by_error = output.rule == ComparisonRule::kNorm && norms.allowed_error > 0;
  if (output.ok()) return by_error ? norms.error / norms.allowed_error : 0;
  return by_error && output.fault == Fault::kValue ? norms.error / norms.allowed_error : kFarOff;
}

std::string Verdict(const OutputComparison& output) {
  if (!output.ok()) return "WRONG";
  return output.num_not_finite == 0
             ? "ok"
             : fmt::format("ok, {} not finite as on one device", output.num_not_finite);
}

std::string MeasuredTime(double predicted_us, const RunFigures& figures) {
  const RunStatistics warm = figures.step_times.Warm(figures.num_warm_up);
  const std::string first =
      figures.step_times.us.empty()
          ? ""
          : fmt::format("; the first step, cold, {}", FormatTime(figures.step_times.us.front()));
  if (warm.num_runs == 0) return "no warm step measured" + first;
  return fmt::format("{} measured{}: median of {} warm step{}, half of them in {} to {}{}",
                     FormatTime(warm.median_us), Difference(predicted_us, warm.median_us),
                     warm.num_runs, warm.num_runs == 1 ? "" : "s",
                     FormatTime(warm.lower_quartile_us), FormatTime(warm.upper_quartile_us), first);
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

std::string DescribeCheck(const OracleReport& report) {
  std::vector<const OutputComparison*> outputs;
  for (const OutputComparison& output : report.outputs) outputs.push_back(&output);
  std::ranges::stable_sort(outputs,
                           [](const auto* a, const auto* b) { return Ratio(*a) > Ratio(*b); });
  Table table({{"result"},
               {"shape"},
               {"largest difference", Align::kRight},
               {"error", Align::kRight},
               {"allowed", Align::kRight},
               {""}});
  for (size_t i = 0; i < std::min(outputs.size(), kShownOutputs); ++i) {
    const OutputComparison& output = *outputs[i];
    const bool by_norm = output.rule == ComparisonRule::kNorm;
    table.Add({output.name.empty() ? fmt::format("{}", output.result) : output.name,
               ToString(output.shape), fmt::format("{:.3g}", output.largest_difference),
               by_norm ? fmt::format("{:.3g}", output.norms.error) : "",
               by_norm ? fmt::format("{:.3g}", output.norms.allowed_error)
               : output.rule == ComparisonRule::kExact ? "exact"
                                                       : "range",
               Verdict(output)});
  }
  std::string text =
      fmt::format("compared with one device after {} step{}, {} results:\n", report.num_steps,
                  report.num_steps == 1 ? "" : "s", report.outputs.size());
  text += table.ToString();
  if (outputs.size() > kShownOutputs) {
    text += fmt::format("and {} more, nearer to one device's\n", outputs.size() - kShownOutputs);
  }
  for (const std::string& decision : report.turned) {
    text += fmt::format("within rounding, turned over on one device, too: {}\n", decision);
  }
  return text;
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
