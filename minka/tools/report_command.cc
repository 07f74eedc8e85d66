// `minka report`: a plan as a page to look at.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/driver/report_page.h"
#include "minka/tools/command.h"
#include "minka/tools/step_source.h"

namespace minka {
namespace {

struct ReportFlags {
  std::string plan, module, trace, out = "report.html";
};

// What the plan was made for, by kind.
absl::StatusOr<std::vector<Cluster>> ClustersOf(const std::map<std::string, std::string>& options,
                                                int64_t num_devices) {
  const auto name = options.find("cluster");
  if (name == options.end() || name->second == kLocalCluster) {
    return std::vector{Cluster::Local(static_cast<int>(num_devices))};
  }
  if (name->second == kLocalCudaCluster) {
    return std::vector{Cluster::LocalCuda(static_cast<int>(num_devices))};
  }
  return Cluster::OfKinds(name->second);
}

absl::StatusOr<std::string> PageOf(const ReportFlags& flags) {
  std::vector<std::vector<TracedEvent>> measured;
  if (!flags.trace.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.trace));
    absl::StatusOr<std::vector<std::vector<TracedEvent>>> events = MeasuredEvents(text);
    if (!events.ok()) return WithContext(events.status(), flags.trace);
    measured = *std::move(events);
  }
  ASSIGN_OR_RETURN(const PlanFile file, ReadPlanFile(flags.plan, flags.module));
  if (const auto* const loaded = std::get_if<PipelineOfStep>(&file)) {
    const PlannedPipeline& planned = loaded->planned;
    int64_t num_devices = 0;
    for (const Mesh& mesh : planned.meshes()) num_devices += mesh.num_devices();
    ASSIGN_OR_RETURN(const std::vector<Cluster> hosts,
                     ClustersOf(planned.plan.options, num_devices));
    return PageOfPipeline(planned, hosts, std::move(measured));
  }
  if (!measured.empty()) {
    return InvalidArgument("--trace: {} is the plan of one mesh, whose steps are not traced",
                           flags.plan);
  }
  const auto& [step, prepared, plan] = std::get<PlanOfStep>(file);
  ASSIGN_OR_RETURN(const std::vector<Cluster> hosts,
                   ClustersOf(plan.options, plan.stage.mesh.num_devices()));
  return PageOfPlan(prepared, plan, hosts.front());
}

absl::Status RunReport(const ReportFlags& flags) {
  ASSIGN_OR_RETURN(const std::string page, PageOf(flags));
  if (flags.out == "-") return Print(page);
  RETURN_IF_ERROR(WriteFile(flags.out, page));
  return Print(fmt::format("{}: open it with a browser; it needs no network\n", flags.out));
}

}  // namespace

void AddReportCommand(CLI::App& app, CommandLine& line) {
  const auto flags = std::make_shared<ReportFlags>();
  CLI::App* const command = app.add_subcommand("report",
                                               "Write a page about a plan: devices and stages, the "
                                               "step as a timeline, memory over time, how "
                                               "every tensor is split, what the search did");
  command->add_option("plan", flags->plan, "A plan.json; - is standard input")->required();
  command
      ->add_option("--out", flags->out,
                   "The HTML file, one that needs no other; - is standard output")
      ->capture_default_str();
  command->add_option("--trace", flags->trace,
                      "Of a pipeline: what minka run --trace wrote; the measured step is shown "
                      "below the predicted one");
  command->add_option(
      "--module", flags->module,
      "The module or model that the plan is of. Default: the one that the plan names");
  command->callback([flags, &line] { Finish(RunReport(*flags), line); });
}

}  // namespace minka
