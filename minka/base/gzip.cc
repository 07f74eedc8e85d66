#include "minka/base/gzip.h"

#include <zlib.h>

#include <limits>
#include <vector>

#include "minka/base/check.h"
#include "minka/base/status.h"

namespace minka {
namespace {

// What asks zlib for gzip's format instead of its own.
constexpr int kGzipWindow = 15 + 16;

}  // namespace

absl::StatusOr<std::string> Gunzip(std::string bytes) {
  if (!bytes.starts_with("\x1f\x8b")) return bytes;
  z_stream stream = {};
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

std::string Gzip(std::string_view bytes) {
  MINKA_CHECK(bytes.size() <= std::numeric_limits<uInt>::max(), "{} bytes", bytes.size());
  constexpr int kMemoryLevel = 8;  // zlib's default
  z_stream stream = {};
  const int started = deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzipWindow,
                                   kMemoryLevel, Z_DEFAULT_STRATEGY);
  MINKA_CHECK(started == Z_OK, "zlib does not start: {}", started);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int code = deflate(&stream, Z_FINISH);
  MINKA_CHECK(code == Z_STREAM_END, "{}", code);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace minka
