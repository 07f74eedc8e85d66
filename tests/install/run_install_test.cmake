# Installs the build tree BUILD_DIR below WORK_DIR, then configures, builds and runs CONSUMER_DIR's programs against it.
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(prefix ${WORK_DIR}/prefix)
file(REMOVE_RECURSE ${prefix} ${WORK_DIR}/consumer_build)
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
run(${CMAKE_COMMAND} -G Ninja -S ${CONSUMER_DIR} -B ${WORK_DIR}/consumer_build
  -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_CXX_COMPILER=${CXX_COMPILER} -D CMAKE_BUILD_TYPE=${BUILD_TYPE})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/consumer_build)
run(${WORK_DIR}/consumer_build/consumer)
run(${WORK_DIR}/consumer_build/plan_and_run)
run(${WORK_DIR}/consumer_build/solve)
