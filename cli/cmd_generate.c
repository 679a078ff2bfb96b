/*
 * cmd_generate.c: `tandem generate`: generates text with a token model.
 *
 * The text is printed character by character.
 */
#include "model.h"

#include <tandem/eval.h>

#include <errno.h>
#include <string.h>

enum { DEFAULT_TOKENS = 500, MAX_TOKENS = 1 << 30 };

typedef struct generation {
    const tdm_checkpoint_content *content;
    tdm_generate_options options;
    bool json;
    tdm_str text; /* generated and not yet printed */
} generation;

static tdm_status generation_flush(generation *g, tdm_error *err)
{
    if (!tdm_str_ok(&g->text)) return tdm_fail(err, TDM_ERR_NO_MEMORY, "generate: out of memory");
    if (g->json) return TDM_OK; /* JSON is printed at the end */
    if (fwrite(g->text.data, 1, g->text.length, stdout) != g->text.length || fflush(stdout) != 0)
        return tdm_fail(err, errno == EPIPE ? TDM_ERR_INTERRUPTED : TDM_ERR_IO,
                        "cannot write the output: %s", strerror(errno));
    tdm_str_clear(&g->text);
    return TDM_OK;
}

static tdm_status write_token(const char *text, void *user, tdm_error *err)
{
    generation *g = user;
    tdm_str_add(&g->text, text);
    return generation_flush(g, err);
}

static tdm_status write_json(generation *g, const char *path, tdm_error *err)
{
    tdm_str out = TDM_STR_INIT;
    tdm_json_writer w = tdm_json_writer_init(&out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "checkpoint", path);
    tdm_json_put_uint(&w, "step", g->content->position.step);
    tdm_json_put_string(&w, "prompt", g->options.prompt ? g->options.prompt : "");
    tdm_json_put_string(&w, "text", tdm_str_text(&g->text));
    tdm_json_put_int(&w, "tokens", g->options.token_count);
    tdm_json_put_uint(&w, "seed", g->options.seed);
    tdm_json_object_end(&w);
    tdm_str_clear(&g->text);
    tdm_str_addf(&g->text, "%s\n", tdm_str_text(&out));
    bool is_whole = tdm_str_ok(&out);
    tdm_str_release(&out);
    g->json = false;
    return is_whole ? generation_flush(g, err)
                    : tdm_fail(err, TDM_ERR_NO_MEMORY, "generate: out of memory");
}

static tdm_status generate_text(generation *g, tdm_model *model, tdm_error *err)
{
    g->content = tdm_model_content(model);
    g->options.characters = g->content->class_names;
    g->options.character_count = g->content->class_count;
    tdm_decoder *decoder;
    TDM_TRY(tdm_model_decoder(model, &decoder, err));
    if (g->options.prompt && !g->json) tdm_str_add(&g->text, g->options.prompt);
    tdm_status status = tdm_generate(decoder, &g->options, write_token, g, err);
    tdm_decoder_destroy(decoder);
    if (status != TDM_OK) return status;

    if (g->json) return write_json(g, tdm_model_path(model), err);
    tdm_str_add_char(&g->text, '\n');
    return generation_flush(g, err);
}

/* ---- the command ----------------------------------------------------------------------------- */

static int generate_run(const cli_args *args)
{
    int64_t seed = 1;
    generation g = {.options = {.choice = {.temperature = 0.8, .top_p = 1.0},
                                .token_count = DEFAULT_TOKENS,
                                .prompt = cli_value(args, "prompt")},
                    .json = cli_json(args)};
    tdm_choice_options *choice = &g.options.choice;
    if (!cli_int(args, "tokens", 1, MAX_TOKENS, &g.options.token_count)) return CLI_USAGE;
    if (!cli_int(args, "top-k", 1, 1 << 20, &choice->top_k)) return CLI_USAGE;
    if (!cli_int(args, "seed", 0, INT64_MAX, &seed)) return CLI_USAGE;
    if (!cli_real(args, "temperature", 0, 1000, &choice->temperature)) return CLI_USAGE;
    if (!cli_real(args, "top-p", 1e-9, 1, &choice->top_p)) return CLI_USAGE;
    g.options.seed = (uint64_t)seed;
    int named = cli_check_model(args->arguments[0]);
    if (named != CLI_OK) return named;
    cli_show_warnings();
    tdm_model *model = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_model_open(args->arguments[0], NULL, &model, &err);
    if (status == TDM_OK) status = generate_text(&g, model, &err);
    int code = CLI_OK;
    if (status == TDM_ERR_INTERRUPTED)
        code = CLI_FAILED; /* the reader has closed the pipe, like `head`: no message */
    else if (status != TDM_OK)
        code = cli_fail(&err);
    tdm_str_release(&g.text);
    tdm_model_close(model);
    return code;
}

static const char *const usage[] = {"tandem generate RUN|CHECKPOINT [options]", NULL};
static const char *const examples[] = {
    "tandem generate runs/shakespeare-1",
    "generate 500 characters",
    "tandem generate runs/shakespeare-1 --prompt 'ROMEO:' --tokens 200 --seed 7",
    "continue a prompt; the same seed gives the same text",
    "tandem generate runs/shakespeare-1 --temperature 0",
    "always the most probable character",
    NULL};

const cli_command cli_generate = {
    .name = "generate",
    .summary = "Generate text with a trained token model",
    .usage = usage,
    .help =
        "For models of kind gpt. Prints the prompt, the generated text and a line break. Each token "
        "is sampled from the distribution of the model: --temperature flattens or sharpens it, "
        "--top-k and --top-p exclude improbable tokens. The seed determines the samples, so the same "
        "command gives the same text. For a run, the newest valid checkpoint is used.\n\n"
        "If the prompt is longer than the model's context, only its last part is used. A character "
        "that does not occur in the training text is an error.",
    .examples = examples,
    .min_arguments = 1,
    .max_arguments = 1,
    .options =
        {{.name = "prompt",
          .letter = 'p',
          .value = "TEXT",
          .help = "The beginning of the text. Default: empty, as at the start of a line."},
         {.name = "tokens",
          .letter = 'n',
          .value = "N",
          .help = "The number of tokens to generate. Default: 500."},
         {.name = "temperature",
          .letter = 't',
          .value = "X",
          .help = "Sampling temperature: below 1 sharpens the distribution, above 1 flattens "
                  "it; 0 always selects the most probable token. Default: 0.8."},
         {.name = "top-k",
          .letter = 'k',
          .value = "K",
          .help = "Sample from the K most probable tokens. Default: all."},
         {.name = "top-p",
          .value = "P",
          .help = "Sample from the smallest set of tokens whose total probability is at least P, "
                  "above 0 and at most 1. Default: 1, all."},
         {.name = "seed",
          .letter = 's',
          .value = "S",
          .help = "The seed of the random numbers. Default: 1."},
         CLI_OPTION_JSON},
    .run = generate_run,
};
