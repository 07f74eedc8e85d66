#include "minka/base/gzip.h"

#include <zlib.h>

#include <vector>

#include "minka/base/status.h"

namespace minka {

absl::StatusOr<std::string> Gunzip(std::string bytes) {
  if (!bytes.starts_with("\x1f\x8b")) return bytes;
  z_stream stream = {};
  constexpr int kGzipWindow = 15 + 16;
  if (inflateInit2(&stream, kGzipWindow) != Z_OK) return InternalError("zlib does not start");
  stream.next_in = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::string out;
  std::vector<char> block(1 << 20);
  int code = Z_OK;
  while (code == Z_OK) {
    stream.next_out = reinterpret_cast<Bytef*>(block.data());
    stream.avail_out = static_cast<uInt>(block.size());
    code = inflate(&stream, Z_NO_FLUSH);
    out.append(block.data(), block.size() - stream.avail_out);
    if (code == Z_STREAM_END && stream.avail_in > 0) code = inflateReset(&stream);
  }
  inflateEnd(&stream);
  if (code != Z_STREAM_END)
    return InvalidArgument("broken gzip data after {} unpacked bytes", out.size());
  return out;
}

}  // namespace minka
