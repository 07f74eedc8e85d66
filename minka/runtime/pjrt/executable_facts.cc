#include "minka/runtime/pjrt/executable_facts.h"

#include <string_view>

#include "minka/base/status.h"
#include "minka/runtime/pjrt/pjrt.pb.h"

namespace minka::pjrt {

absl::StatusOr<MemoryStatistics> ReadMemoryStatistics(const PJRT_Api* api,
                                                      PJRT_Executable* program) {
  auto args = Arguments<PJRT_Executable_GetCompiledMemoryStats_Args>();
  args.executable = program;
  RETURN_IF_ERROR(Call(api, &PJRT_Api::PJRT_Executable_GetCompiledMemoryStats, args));
  return MemoryStatistics{.argument_bytes = args.argument_size_in_bytes,
                          .output_bytes = args.output_size_in_bytes,
                          .alias_bytes = args.alias_size_in_bytes,
                          .temp_bytes = args.temp_size_in_bytes,
                          .generated_code_bytes = args.generated_code_size_in_bytes};
}

absl::StatusOr<std::string> ReadOptimizedModule(const PJRT_Api* api, PJRT_Executable* executable) {
  PJRT_Program program = {.struct_size = PJRT_Program_STRUCT_SIZE};
  auto args = Arguments<PJRT_Executable_OptimizedProgram_Args>();
  args.executable = executable;
  args.program = &program;
  // The first call gives the size, the second the bytes.
  RETURN_IF_ERROR(Call(api, &PJRT_Api::PJRT_Executable_OptimizedProgram, args));
  std::string code(program.code_size, '\0');
  program.code = code.data();
  RETURN_IF_ERROR(Call(api, &PJRT_Api::PJRT_Executable_OptimizedProgram, args));
  const std::string_view format(program.format, program.format_size);
  if (format != "hlo_with_config") return Unimplemented("optimized program in format '{}'", format);
  proto::HloModuleProtoWithConfig message;
  if (!message.ParseFromString(code))
    return InternalError("the plugin's optimized program is no HloModuleProtoWithConfig");
  return std::move(*message.mutable_hlo_module());
}

PJRT_Program HloProgram(std::string_view module_bytes) {
  static constexpr std::string_view kFormat = "hlo";
  // The field is not const because another call writes it.
  return {.struct_size = PJRT_Program_STRUCT_SIZE,
          .code = const_cast<char*>(module_bytes.data()),
          .code_size = module_bytes.size(),
          .format = kFormat.data(),
          .format_size = kFormat.size()};
}

}  // namespace minka::pjrt
