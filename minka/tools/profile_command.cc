// `minka profile`: what operations and collectives cost on this machine.
#include <memory>
#include <optional>
#include <string>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/profiler/profile.h"
#include "minka/report/format.h"
#include "minka/report/table.h"
#include "minka/tools/child_process.h"
#include "minka/tools/command.h"
#include "minka/tools/local_cluster.h"

namespace minka {
namespace {

struct ProfileFlags {
  std::optional<int> num_devices;
  std::string cluster = kLocalCluster;
  std::string plugin;
  bool local = false, cached = false, json = false;
};

std::string DescribeWaits(const std::vector<WaitPoint>& waits) {
  std::vector<std::string> parts;
  for (const WaitPoint& wait : waits) {
    parts.push_back(
        fmt::format("{} behind {} of work", FormatTime(wait.us), FormatTime(wait.phase_us)));
  }
  return parts.empty() ? "not measured" : fmt::format("{}", fmt::join(parts, ", "));
}

std::string Describe(const Calibration& calibration, const std::string& path) {
  std::string text = fmt::format(
      "{}, {}, {} devices at once\n\n"
      "launch of a program       {}\n"
      "launch of a fusion group  {}\n"
      "arithmetic                {:.0f} operations per us and device, {:.0f} in bf16\n"
      "exponentials              {:.0f}, {:.0f} in bf16\n"
      "memory                    {}/s per device in place, {}/s copied, {}/s in caches of {}\n"
      "waiting at a collective   {}\n\n",
      calibration.cores > 1 ? fmt::format("{} ({} cores)", calibration.processor, calibration.cores)
                            : calibration.processor,
      calibration.plugin, calibration.num_devices, FormatTime(calibration.step_us),
      FormatTime(calibration.launch_us), calibration.arithmetic_per_us,
      calibration.half_arithmetic_per_us, calibration.elementwise_per_us,
      calibration.half_elementwise_per_us,
      FormatBytes(static_cast<int64_t>(calibration.bytes_per_us * 1e6)),
      FormatBytes(static_cast<int64_t>(calibration.copied_bytes_per_us * 1e6)),
      FormatBytes(static_cast<int64_t>(calibration.cached_bytes_per_us * 1e6)),
      FormatBytes(calibration.cache_bytes), DescribeWaits(calibration.waits));
  Table dots(
      {{"product (batch x m x n x k)"}, {""}, {"time", Align::kRight}, {"GFLOP/s", Align::kRight}});
  const auto add = [&](const std::vector<DotPoint>& points, const char* what) {
    for (const DotPoint& dot : points) {
      const double flops = 2.0 * static_cast<double>(dot.batch) * static_cast<double>(dot.m) *
                           static_cast<double>(dot.n) * static_cast<double>(dot.k);
      dots.Add({fmt::format("{} x {} x {} x {}", dot.batch, dot.m, dot.n, dot.k),
                fmt::format("{} {}", what, ToString(dot.form)), FormatTime(dot.us),
                fmt::format("{:.1f}", flops / dot.us * 1e-3)});
    }
  };
  add(calibration.dots, "dot");
  add(calibration.half_dots, "bf16 dot");
  add(calibration.cached_dots, "cached dot");
  add(calibration.convolutions, "convolution");
  Table reductions({{"reduction"}, {"operations per us", Align::kRight}});
  for (const ReductionRate& rate : calibration.reductions) {
    reductions.Add({fmt::format("{}{}", ToString(rate.kernel), rate.is_half ? ", bf16" : ""),
                    fmt::format("{:.0f}", rate.elementwise_per_us)});
  }
  Table collectives({{"collective"},
                     {"group", Align::kRight},
                     {"dimension"},
                     {"bytes", Align::kRight},
                     {"time", Align::kRight}});
  for (const CollectivePoint& point : calibration.collectives) {
    collectives.Add(
        {std::string(ToString(point.kind)),
         fmt::format("{}{}", point.group_size, point.layout.is_strided ? ", strided" : ""),
         point.layout.is_inner ? "inner" : "first", FormatBytes(point.bytes),
         FormatTime(point.us)});
  }
  if (const std::string note = DisturbanceNote(calibration); !note.empty()) {
    text += fmt::format("warning: {}\n\n", note);
  }
  return text + dots.ToString() + "\n" + reductions.ToString() + "\n" + collectives.ToString() +
         fmt::format("\nkept in {}\n", path);
}

absl::Status RunProfile(const ProfileFlags& flags) {
  ReportPhase("profile");
  RETURN_IF_ERROR(CheckRunsLocally("profile", {.cluster = flags.cluster}));
  const bool is_cpu = flags.cluster == kLocalCluster;
  const int num_devices = flags.num_devices.value_or(is_cpu ? 8 : 1);
  ASSIGN_OR_RETURN(const LocalDevices devices,
                   OpenLocalDevices({.num_devices = num_devices,
                                     .plugin_path = flags.plugin,
                                     .kind = PlatformOfLocal(flags.cluster)}));
  const ProfileOptions options{.num_devices = num_devices,
                               .on_progress = [](std::string_view what, int done, int total) {
                                 ReportPart(what);
                                 ShowStatus(fmt::format("{}/{} {}", done, total, what));
                               }};
  const std::string path = CalibrationPath(devices, num_devices);
  ASSIGN_OR_RETURN(const Calibration calibration, flags.cached ? LoadOrProfile(devices, options)
                                                               : ProfileAndKeep(devices, options));
  ClearStatus();
  return Print(flags.json ? calibration.ToJson() + "\n" : Describe(calibration, path));
}

}  // namespace

void AddProfileCommand(CLI::App& app, CommandLine& line) {
  const auto flags = std::make_shared<ProfileFlags>();
  CLI::App* const command = app.add_subcommand(
      "profile",
      "Measure what operations and collectives cost on this machine, and keep it for "
      "--cost-model measured (about three minutes)");
  command->add_flag("--local", flags->local,
                    "Measure this machine's devices, which is all that can be measured so far");
  command
      ->add_option("--cluster", flags->cluster,
                   "local (this machine's cores as virtual devices) or local-cuda (its GPUs)")
      ->capture_default_str();
  command->add_option("--num-devices", flags->num_devices,
                      "Devices that run at once. Default: 8, or one GPU");
  command->add_option("--plugin", flags->plugin,
                      "PJRT plugin. Default: MINKA_PJRT_PLUGIN, else searched");
  command->add_flag("--cached", flags->cached,
                    "Print what is kept from an earlier run, and measure only if nothing is");
  command->add_flag("--json", flags->json, "Print one JSON object instead of tables");
  command->callback([flags, &line] {
    if (!IsChild()) {
      line.exit_code = RunInChildAndReport(line.arguments);
    } else {
      Finish(RunProfile(*flags), line);
    }
  });
}

}  // namespace minka
