# D3_FILE: d3.min.js, which Debian's node-d3 brings.
find_file(D3_FILE d3.min.js PATHS /usr/share/nodejs/d3/dist /usr/local/share/nodejs/d3/dist NO_DEFAULT_PATH)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(D3 REQUIRED_VARS D3_FILE REASON_FAILURE_MESSAGE "install node-d3")
mark_as_advanced(D3_FILE)
