# ellm_room(NAME SOURCES … LINKS …): a static library ellm_NAME with the house's warnings.
# ellm_program(NAME SOURCES … LINKS …): an installed executable.
# Link lines repeat the include table of HACKING.md.
add_library(ellm_base INTERFACE)
target_include_directories(ellm_base INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(ellm_base INTERFACE -Wall -Wextra -Werror -ffp-contract=off -fno-math-errno)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # std::stable_sort of libstdc++ 12 calls a function that clang then reports as deprecated.
  target_compile_options(ellm_base INTERFACE -Wno-deprecated-declarations)
endif()
target_compile_definitions(ellm_base INTERFACE ELLM_VERSION="${PROJECT_VERSION}")
# ellm_base with the sanitizers of the preset: for all but the kernel levels.
add_library(ellm_options INTERFACE)
target_link_libraries(ellm_options INTERFACE ellm_base)
if(ELLM_SANITIZE)
  target_compile_options(ellm_options INTERFACE -fsanitize=${ELLM_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(ellm_options INTERFACE -fsanitize=${ELLM_SANITIZE})
  if(ELLM_SANITIZE MATCHES "undefined")
    target_compile_options(ellm_options INTERFACE -fno-sanitize-recover=undefined)
  endif()
  if(ELLM_SANITIZE MATCHES "thread")
    target_compile_options(ellm_options INTERFACE -Wno-tsan)
  endif()
endif()

function(ellm_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
  add_library(ellm_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(ellm_${name} PUBLIC ellm_options ${ARG_LINKS})
endfunction()

function(ellm_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ellm_options ${ARG_LINKS})
  set_property(GLOBAL APPEND PROPERTY ELLM_PROGRAMS ${name})
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()
