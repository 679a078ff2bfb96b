# How tests share the cores, and the parts of them that can be built and run alone.
#
# ctest counts slots. With TANDEM_TEST_SLOTS of them for each core (`tools/run-tests release` starts twice as
# many jobs as there are cores), a test takes as many as that, and a test that mostly waits - for a deadline,
# for etcd, for a terminal - takes one. So a test that computes shares its core only with tests that wait. In
# a build without this setting every test has one slot.
set(TANDEM_TEST_SLOTS 1 CACHE STRING "Slots of ctest for each core")

# tandem_share_cores(WAITING...): call it after the last test of a directory; the WAITING tests mostly wait.
function(tandem_share_cores)
  get_property(tests DIRECTORY PROPERTY TESTS)
  foreach(test ${tests})
    if(NOT test IN_LIST ARGN)
      set_tests_properties(${test} PROPERTIES PROCESSORS ${TANDEM_TEST_SLOTS})
    endif()
  endforeach()
endfunction()

# tandem_costs(TEST SECONDS ...): the duration of long tests. In a new build ctest does not know them, and
# would start a long one after all others.
function(tandem_costs)
  set(pairs ${ARGN})
  while(pairs)
    list(POP_FRONT pairs test seconds)
    if(TEST ${test})
      set_tests_properties(${test} PROPERTIES COST ${seconds})
    endif()
  endwhile()
endfunction()

# tandem_part(PART PREFIX NAMES...): the tests PREFIX.NAME, separate programs named PREFIX_NAME, belong to
# that part: `tools/run-tests PRESET/PART` builds and runs it.
function(tandem_part part prefix)
  if(NOT TARGET part_${part})
    add_custom_target(part_${part})
  endif()
  foreach(name ${ARGN})
    add_dependencies(part_${part} ${prefix}_${name})
    set_property(TEST ${prefix}.${name} APPEND PROPERTY LABELS ${part})
  endforeach()
endfunction()
