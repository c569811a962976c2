# Finds a CUDA compiler: the system's nvcc, or the nvcc in NVIDIA's wheels (pip install "cuda-toolkit[nvcc,cccl]").
#
# In:  JAX_DCN_CUDA; its value WHEELS prefers NVIDIA's wheels
#      JAX_DCN_CUDA_CODE, unless CMAKE_CUDA_ARCHITECTURES is set, or CUDAARCHS in the environment; if none is, the
#      GPUs of this machine decide
# Out: JAX_DCN_WITH_CUDA, CMAKE_CUDA_COMPILER, CMAKE_CUDA_ARCHITECTURES, JAX_DCN_CUDA_FLAGS, architectures, and the
#      reason for these;
#      or JAX_DCN_CUDA_ABSENT, why there is none

set(JAX_DCN_WITH_CUDA OFF)
string(TOUPPER "${JAX_DCN_CUDA}" JAX_DCN_CUDA)
if(NOT JAX_DCN_CUDA AND NOT JAX_DCN_CUDA STREQUAL "AUTO")
  set(JAX_DCN_CUDA_ABSENT "CUDA was switched off")
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER)
  unset(CMAKE_CUDA_COMPILER CACHE)  # an earlier configuration may have cached that there is none
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "import nvidia; print(*nvidia.__path__, sep=';')"
    OUTPUT_VARIABLE nvidia_wheels OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(TRANSFORM nvidia_wheels APPEND /cu13)
  if(JAX_DCN_CUDA STREQUAL "WHEELS")
    set(preferred ${nvidia_wheels})
  endif()
  find_program(
    nvcc nvcc HINTS ${preferred} ENV CUDA_PATH PATHS /usr/local/cuda ${nvidia_wheels} PATH_SUFFIXES bin NO_CACHE)
  if(nvcc)
    set(ENV{CUDACXX} "${nvcc}")
    cmake_path(GET nvcc PARENT_PATH toolkit)
    cmake_path(GET toolkit PARENT_PATH toolkit)
    if(toolkit IN_LIST nvidia_wheels)
      # The nvcc of the wheels searches for its libraries in lib64, but the wheels have them in lib.
      set(ENV{NVCC_APPEND_FLAGS} "$ENV{NVCC_APPEND_FLAGS} -L${toolkit}/lib")
    endif()
  endif()
endif()
include(CheckLanguage)
check_language(CUDA)

if(NOT CMAKE_CUDA_COMPILER)
  set(JAX_DCN_CUDA_ABSENT "no working CUDA compiler found")
elseif(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(requested ${JAX_DCN_CUDA_CODE})
  set(reason "as requested")
  if(NOT requested AND NOT CMAKE_CROSSCOMPILING)
    execute_process(
      COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE output ERROR_QUIET)
    string(REGEX MATCHALL "[^\r\n]+" gpus "${output}")
    list(FILTER gpus INCLUDE REGEX "^[0-9]+\\.[0-9]$")  # without messages
    foreach(gpu IN LISTS gpus)
      string(REPLACE "." "" architecture ${gpu})
      if(architecture LESS 80)
        message(STATUS "jax_dcn: the kernels do not support this machine's GPU of compute capability ${gpu}")
      else()
        list(APPEND requested ${architecture})
      endif()
    endforeach()
    set(reason "for the GPU of this machine")
  endif()
  if(NOT requested)
    set(requested ALL)
    set(reason "for all GPUs, because none was found")
  endif()
  if(requested STREQUAL "ALL")
    include("${CMAKE_CURRENT_LIST_DIR}/Architectures.cmake")
    set(requested ${JAX_DCN_ARCHITECTURES})
  endif()
  # All machine code is compiled from one PTX, that of the oldest architecture, which the tests execute. The PTX is
  # included: the driver compiles it for every other GPU.
  execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
  foreach(architecture IN LISTS requested)
    # GPUs run the machine code of the first architecture of their generation, too.
    string(REGEX REPLACE ".$" "0" first ${architecture})
    foreach(candidate ${architecture} ${first})
      if(known MATCHES "sm_${candidate}\n")
        list(APPEND code ${candidate})
        break()
      endif()
    endforeach()
  endforeach()
  if(known MATCHES "sm_80\n" AND (code OR NOT JAX_DCN_CUDA_CODE))
    set(CMAKE_CUDA_ARCHITECTURES OFF)
    list(REMOVE_DUPLICATES code)
    list(TRANSFORM code APPEND -real OUTPUT_VARIABLE architectures)
    list(APPEND architectures 80-virtual)
    list(TRANSFORM code PREPEND sm_)
    list(APPEND code compute_80)
    list(JOIN code "," code)
    set(JAX_DCN_CUDA_FLAGS --generate-code=arch=compute_80,code=[${code}])
  else()
    set(JAX_DCN_CUDA_ABSENT "${CMAKE_CUDA_COMPILER} can compile for none of: ${requested}")
  endif()
else()
  set(architectures ${CMAKE_CUDA_ARCHITECTURES} $ENV{CUDAARCHS})
  set(reason "as requested")
endif()

if(NOT JAX_DCN_CUDA_ABSENT)
  set(JAX_DCN_WITH_CUDA ON)
elseif(NOT JAX_DCN_CUDA STREQUAL "AUTO")
  message(FATAL_ERROR
    "jax_dcn: JAX_DCN_CUDA=${JAX_DCN_CUDA} asks for the CUDA kernels, but: ${JAX_DCN_CUDA_ABSENT}. Install one "
    "(JAX_DCN_CUDA=WHEELS pip install . takes NVIDIA's from PyPI), name it (CUDACXX=/path/to/nvcc), or build without it "
    "(JAX_DCN_CUDA=OFF).")
endif()
