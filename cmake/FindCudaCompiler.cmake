# Looks for a CUDA compiler: the system's nvcc, or the one in NVIDIA's wheels (pip install "cuda-toolkit[nvcc,cccl]").
#
# In:  JAX_DCN_CUDA
# Out: JAX_DCN_WITH_CUDA, CMAKE_CUDA_COMPILER, CMAKE_CUDA_ARCHITECTURES; JAX_DCN_CUDA_ABSENT says why there is none

set(JAX_DCN_WITH_CUDA OFF)
string(TOUPPER "${JAX_DCN_CUDA}" JAX_DCN_CUDA)
if(NOT JAX_DCN_CUDA)
  set(JAX_DCN_CUDA_ABSENT "CUDA was switched off")
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "import nvidia; print(*nvidia.__path__, sep=';')"
    OUTPUT_VARIABLE nvidia_wheels OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(TRANSFORM nvidia_wheels APPEND /cu13)
  find_program(nvcc nvcc HINTS ENV CUDA_PATH PATHS /usr/local/cuda ${nvidia_wheels} PATH_SUFFIXES bin NO_CACHE)
  if(nvcc)
    set(CMAKE_CUDA_COMPILER "${nvcc}" CACHE FILEPATH "CUDA compiler")
    cmake_path(GET nvcc PARENT_PATH toolkit)
    cmake_path(GET toolkit PARENT_PATH toolkit)
    if(toolkit IN_LIST nvidia_wheels)
      # The wheels' nvcc looks for its libraries in lib64, which they call lib.
      set(ENV{NVCC_APPEND_FLAGS} "$ENV{NVCC_APPEND_FLAGS} -L${toolkit}/lib")
    endif()
  endif()
endif()

if(JAX_DCN_CUDA STREQUAL "AUTO")
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(JAX_DCN_CUDA_ABSENT "no CUDA compiler found")
    return()
  endif()
elseif(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  message(FATAL_ERROR
    "jax_dcn: JAX_DCN_CUDA=${JAX_DCN_CUDA} asks for the CUDA kernels, but there is no CUDA compiler. Install one "
    "(pip install \"cuda-toolkit[nvcc,cccl]==13.*\", then build with --no-build-isolation), name it "
    "(CUDACXX=/path/to/nvcc), or build without it (-Ccmake.define.JAX_DCN_CUDA=OFF).")
endif()
set(JAX_DCN_WITH_CUDA ON)

# Machine code for the generations the compiler knows, and PTX for later ones.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(compiler "${CMAKE_CUDA_COMPILER}")
  if(NOT compiler)
    set(compiler "$ENV{CUDACXX}")
  endif()
  execute_process(COMMAND "${compiler}" --list-gpu-code OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)
  set(CMAKE_CUDA_ARCHITECTURES)
  foreach(architecture 80 90 100 120)
    if(known MATCHES "sm_${architecture}\n")
      list(APPEND CMAKE_CUDA_ARCHITECTURES ${architecture}-real)
      set(newest ${architecture})
    endif()
  endforeach()
  list(APPEND CMAKE_CUDA_ARCHITECTURES ${newest}-virtual)
endif()
