# Third-party libraries, all from the distribution's packages (tools/packages.txt).
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED)   # headers: Asio, Interprocess
find_package(PkgConfig REQUIRED)
pkg_check_modules(NUMA REQUIRED IMPORTED_TARGET numa)
pkg_check_modules(SYSTEMD REQUIRED IMPORTED_TARGET libsystemd)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(EDIT REQUIRED IMPORTED_TARGET libedit)
pkg_check_modules(PROMETHEUS REQUIRED IMPORTED_TARGET prometheus-cpp-core)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)

# Debian 12 cannot install libmsgpack-cxx-dev beside Boost 1.81; its headers are unpacked into the build directory there.
add_library(ellm_msgpack INTERFACE)
find_path(MSGPACK_INCLUDE_DIR msgpack.hpp HINTS ${CMAKE_BINARY_DIR}/msgpack/usr/include)
if(NOT MSGPACK_INCLUDE_DIR)
  message(STATUS "fetching the msgpack headers into the build directory")
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/tools/get-msgpack ${CMAKE_BINARY_DIR}/msgpack COMMAND_ERROR_IS_FATAL ANY)
  unset(MSGPACK_INCLUDE_DIR CACHE)
  find_path(MSGPACK_INCLUDE_DIR msgpack.hpp HINTS ${CMAKE_BINARY_DIR}/msgpack/usr/include REQUIRED)
endif()
target_include_directories(ellm_msgpack SYSTEM INTERFACE ${MSGPACK_INCLUDE_DIR})
target_compile_definitions(ellm_msgpack INTERFACE MSGPACK_NO_BOOST)

add_library(ellm_asio INTERFACE)
target_link_libraries(ellm_asio INTERFACE Boost::headers Threads::Threads)
target_compile_definitions(ellm_asio INTERFACE BOOST_ASIO_NO_DEPRECATED BOOST_ASIO_DISABLE_BOOST_REGEX)
if(ELLM_SANITIZE MATCHES "thread")
  target_compile_definitions(ellm_asio INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
endif()

# Boost.JSON from its header-only form, compiled once.
add_library(ellm_boost_json STATIC ${CMAKE_SOURCE_DIR}/cmake/boost_json.cc)
target_link_libraries(ellm_boost_json PUBLIC Boost::headers)
