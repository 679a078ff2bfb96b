/* cmd_version.c: `tandem version`. */
#include "cli.h"

static int version_run(const cli_args *args)
{
    tdm_str out = TDM_STR_INIT;
    if (cli_json(args)) {
        tdm_json_writer w = tdm_json_writer_init(&out, 0);
        tdm_json_object_begin(&w);
        tdm_json_put_string(&w, "version", tdm_version());
        tdm_json_object_end(&w);
        tdm_str_add_char(&out, '\n');
    } else {
        tdm_str_addf(&out, "tandem %s\n", tdm_version());
    }
    return cli_print(&out);
}

static const char *const usage[] = {"tandem version [--json]", NULL};

const cli_command cli_version = {
    .name = "version",
    .summary = "Print the version",
    .usage = usage,
    .help = "Prints the version of the library that the program runs with.",
    .options = {CLI_OPTION_JSON},
    .run = version_run,
};
