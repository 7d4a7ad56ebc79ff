# Runs inside ctest: registers every test of a GoogleTest binary by itself, so that each has its
# process and its time limit, and a crash or a hang is one failure with a name. Parameters:
#   binary, suite   the program, and the label of all its tests
#   timing_files    files below tests/ whose tests also have the label `timing` and run alone
#   no_tsan_files   files below tests/ whose tests also have the label `no_tsan`
#   seconds         how long a test may take
# Each test also has the labels of its program (kernels_tests) and of its folder (tests/cpu).
cmake_policy(VERSION 3.25)

function(list_tests)
  get_filename_component(program "${binary}" NAME)
  set(list "${binary}.xml")
  if(NOT EXISTS "${list}" OR "${binary}" IS_NEWER_THAN "${list}")
    execute_process(COMMAND "${binary}" --gtest_list_tests "--gtest_output=xml:${list}"
      OUTPUT_QUIET RESULT_VARIABLE code)
    if(NOT code EQUAL 0)
      # A binary that is missing or crashes before its first test counts as a failure, too.
      file(REMOVE "${list}")
      add_test("${program}:cannot_be_listed" "${binary}" --gtest_list_tests)
      set_tests_properties("${program}:cannot_be_listed" PROPERTIES
        LABELS "${suite};${program}")
      return()
    endif()
  endif()
  file(READ "${list}" text)
  # Only names and files: values of parameters may hold what CMake treats as the end of an element.
  string(REGEX MATCHALL "<testsuite name=\"[^\"]*|<testcase name=\"[^\"]*| file=\"[^\"]*" parts "${text}")
  foreach(part IN LISTS parts)
    string(REGEX REPLACE "^[^\"]*\"" "" value "${part}")
    if(part MATCHES "^<testsuite ")
      set(group "${value}")
    elseif(part MATCHES "^<testcase ")
      set(name "${group}.${value}")
    else()
      string(REGEX REPLACE "^.*tests/([^/]+/[^/]+)$" "\\1" file "${value}")
      get_filename_component(folder "${file}" DIRECTORY)
      set(labels "${suite}" "${program}" "tests/${folder}")
      set(alone FALSE)
      if(file IN_LIST timing_files)
        list(APPEND labels timing)
        set(alone TRUE)
      endif()
      if(file IN_LIST no_tsan_files)
        list(APPEND labels no_tsan)
      endif()
      add_test("${suite}:${name}" "${binary}" "--gtest_filter=${name}")
      set_tests_properties("${suite}:${name}" PROPERTIES
        LABELS "${labels}" TIMEOUT "${seconds}" RUN_SERIAL ${alone}
        SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]" FAIL_REGULAR_EXPRESSION "Running 0 tests")
    endif()
  endforeach()
endfunction()
list_tests()
