# What `make install` installs, and where. The program writes its man page and shell completions, from the
# table that its help is generated from; a build writes them to BUILD/share in the layout of the installation.
# tools/uninstall removes what is installed here: keep the two consistent (the test `install` checks this).

# tandem_share(PATH ARGUMENTS...): BUILD/share/PATH is what `tandem ARGUMENTS` prints.
set(share_files "")
function(tandem_share path)
  set(output ${CMAKE_BINARY_DIR}/share/${path})
  get_filename_component(dir ${output} DIRECTORY)
  file(MAKE_DIRECTORY ${dir})
  add_custom_command(OUTPUT ${output} DEPENDS tandem VERBATIM
    COMMAND tandem ${ARGN} > ${output}.tmp
    COMMAND ${CMAKE_COMMAND} -E rename ${output}.tmp ${output}
    COMMENT "Writing share/${path}")
  set(share_files ${share_files} ${output} PARENT_SCOPE)
endfunction()

tandem_share(man/man1/tandem.1 help --man)
tandem_share(bash-completion/completions/tandem help --completion bash)
tandem_share(zsh/site-functions/_tandem help --completion zsh)
tandem_share(fish/vendor_completions.d/tandem.fish help --completion fish)
add_custom_target(share ALL DEPENDS ${share_files})

# The pkg-config file finds the other directories relative to its own, so the tree can be moved.
string(REGEX REPLACE "[^/]+" ".." pc_up "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
configure_file(cmake/tandem.pc.in ${CMAKE_BINARY_DIR}/tandem.pc @ONLY)

install(TARGETS tandem_library tandem
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  PUBLIC_HEADER DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tandem)
if(TANDEM_PLUGINS)
  install(TARGETS ${TANDEM_PLUGINS} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/tandem)
endif()
install(FILES ${CMAKE_BINARY_DIR}/tandem.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(DIRECTORY ${CMAKE_BINARY_DIR}/share/ DESTINATION ${CMAKE_INSTALL_DATADIR}
  PATTERN *.tmp EXCLUDE)

# A program built against a sanitized library would need the sanitizer as well, so these are left out.
if(TANDEM_TESTS AND NOT TANDEM_SANITIZE)
  add_test(NAME install COMMAND ${PROJECT_SOURCE_DIR}/tools/test-install ${CMAKE_BINARY_DIR})
  set_tests_properties(install PROPERTIES LABELS tools TIMEOUT 120)
endif()
