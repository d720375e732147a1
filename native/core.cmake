# Kernels, step program and Python module; included by the CMakeLists.txt above.

# ---- one library per instruction set ----
file(GLOB kernel_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/native/src/kernels/*.cc)
set(isa_objects "")
set(isa_defines "")
function(headrace_isa name)
  add_library(headrace_${name} OBJECT ${kernel_sources})
  target_compile_definitions(headrace_${name} PRIVATE HR_ISA=${name})
  target_compile_options(headrace_${name} PRIVATE ${headrace_flags} ${ARGN})
  target_include_directories(headrace_${name} PRIVATE native/include native/src)
  set(isa_objects ${isa_objects} $<TARGET_OBJECTS:headrace_${name}> PARENT_SCOPE)
  string(TOUPPER ${name} upper)
  set(isa_defines ${isa_defines} HEADRACE_HAS_${upper}=1 PARENT_SCOPE)
endfunction()

headrace_isa(portable)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  headrace_isa(avx2 -mavx2 -mfma -mf16c)
  headrace_isa(avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64|ARM64")
  headrace_isa(neon)
  headrace_isa(neondot -march=armv8.2-a+dotprod)
endif()

# ---- packing, threads, step program ----
file(GLOB core_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/native/src/*.cc ${CMAKE_SOURCE_DIR}/native/src/pack/*.cc)
add_library(headrace_core STATIC ${core_sources} ${isa_objects})
target_compile_definitions(headrace_core PRIVATE ${isa_defines})
target_compile_options(headrace_core PRIVATE ${headrace_flags})
target_include_directories(headrace_core PUBLIC native/include native/src)
target_link_libraries(headrace_core PUBLIC Threads::Threads)

# ---- Python module ----
find_package(Python 3.11 COMPONENTS Interpreter Development.Module)
if(Python_FOUND)
  execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
                  OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_ROOT)
  find_package(nanobind CONFIG REQUIRED)
  file(GLOB bind_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/native/bind/*.cc)
  nanobind_add_module(_native NB_STATIC ${bind_sources})
  target_link_libraries(_native PRIVATE headrace_core)
  install(TARGETS _native LIBRARY DESTINATION headrace)
endif()
