#include "minka/tools/bundle.h"

#include <archive.h>
#include <archive_entry.h>

#include <memory>

#include "minka/base/status.h"

namespace minka {
namespace {

using Archive = std::unique_ptr<archive, decltype(&archive_write_free)>;
using Entry = std::unique_ptr<archive_entry, decltype(&archive_entry_free)>;

absl::Status Failed(const std::string& path, archive* writer) {
  return Unavailable("cannot write {}: {}", path, archive_error_string(writer));
}

}  // namespace

absl::Status WriteBundle(const std::string& path, const std::map<std::string, std::string>& files) {
  const Archive writer(archive_write_new(), &archive_write_free);
  archive_write_set_format_ustar(writer.get());
  archive_write_add_filter_gzip(writer.get());
  archive_write_set_filter_option(writer.get(), "gzip", "timestamp", nullptr);
  if (archive_write_open_filename(writer.get(), path.c_str()) != ARCHIVE_OK) {
    return Failed(path, writer.get());
  }
  for (const auto& [name, contents] : files) {
    const Entry entry(archive_entry_new(), &archive_entry_free);
    archive_entry_set_pathname(entry.get(), name.c_str());
    archive_entry_set_size(entry.get(), static_cast<la_int64_t>(contents.size()));
    archive_entry_set_filetype(entry.get(), AE_IFREG);
    archive_entry_set_perm(entry.get(), 0644);
    if (archive_write_header(writer.get(), entry.get()) != ARCHIVE_OK ||
        archive_write_data(writer.get(), contents.data(), contents.size()) < 0) {
      return Failed(path, writer.get());
    }
  }
  if (archive_write_close(writer.get()) != ARCHIVE_OK) return Failed(path, writer.get());
  return absl::OkStatus();
}

}  // namespace minka
