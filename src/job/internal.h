/*
 * internal.h: declarations shared by the files of the job module.
 *
 * A load has four stages, each in its own file: bytes become a tree of YAML nodes with positions
 * (yaml.c); the tree and the overrides fill one slot per key (slots.c); a slot becomes a checked
 * value in the tdm_job (value.c); rules check combinations of keys (rules.c). All stages add to one
 * list of problems and continue, so that the user sees all problems at once.
 *
 * Memory: nodes are in a scratch arena that ends with the load; problems and the values of the job
 * are in the document's arena. A stage that runs out of memory sets problems->no_memory and
 * returns; load.c checks that flag first.
 */
#ifndef TANDEM_SRC_JOB_INTERNAL_H
#define TANDEM_SRC_JOB_INTERNAL_H

#include <tandem/job.h>

#define TDM__JOB_FILE_BYTES (1024u * 1024u) /* maximum size of a job file */
#define TDM__JOB_DEPTH 20                   /* maximum nesting of YAML */
#define TDM__LAYER_DEPTH 4                  /* maximum nesting of layers */
#define TDM__LAYERS_LISTED 256              /* maximum number of layers in one list */
#define TDM__MAX_LAYERS 1024                /* maximum total number, including repetitions */
#define TDM__JOB_PROBLEMS 100               /* maximum number of listed problems */
#define TDM__JOB_STRING_BYTES 1024          /* maximum length of a text value */
#define TDM__JOB_PATH_BYTES 4095            /* maximum length of a path on Linux */
#define TDM__MAX_JOB_INT 9007199254740992.0 /* 2^53: exact in JSON and in doubles */
#define TDM__JOB_OVERRIDE_FILE "--set"

/* ---- problems.c ------------------------------------------------------------------------------ */

typedef struct tdm__job_position {
    const char *file; /* borrowed; must outlive the document */
    int line;         /* from 1; 0 for none */
    int column;
} tdm__job_position;

typedef struct tdm__problem_list {
    tdm_arena *arena;
    tdm_job_problem *items;
    size_t count;
    size_t capacity;
    size_t unlisted; /* beyond TDM__JOB_PROBLEMS */
    bool no_memory;
} tdm__problem_list;

void tdm__problem_add(tdm__problem_list *list, tdm__job_position place, const char *fmt, ...)
    TDM_PRINTF(3, 4);
bool tdm__problem_list_full(const tdm__problem_list *list);
/* Sorts by position (the file first, then problems without a position, then overrides) and adds a
 * last line if some problems are not listed. */
void tdm__problem_list_finish(tdm__problem_list *list, const char *file);

/* Text from outside for use in a message: clipped to about 48 bytes, control characters as '?'. */
typedef struct tdm__clip {
    char text[64];
} tdm__clip;
tdm__clip tdm__clip_text(const char *text);

/* ---- yaml.c ---------------------------------------------------------------------------------- */

typedef enum tdm__yaml_kind { TDM__YAML_SCALAR, TDM__YAML_LIST, TDM__YAML_MAP } tdm__yaml_kind;

typedef struct tdm__yaml_node tdm__yaml_node;
struct tdm__yaml_node {
    tdm__yaml_kind kind;
    tdm__job_position place;
    const char *text; /* scalars: terminated, no inner zero bytes */
    bool plain;       /* scalars: written without quotes */
    bool broken;      /* its problem is already listed: ignore it */
    const char *key;  /* entries of a map */
    tdm__job_position key_place;
    tdm__yaml_node *first; /* children of lists and maps, in order */
    tdm__yaml_node *next;
};

/*
 * Parses one YAML document. Anchors, aliases, tags, merge keys and keys that are not scalars become
 * problems. Returns NULL if the text is not YAML (a problem has the position) or memory ran out. An
 * empty text gives a scalar "".
 */
tdm__yaml_node *tdm__yaml_read(const char *bytes, size_t count, const char *file, tdm_arena *arena,
                               tdm__problem_list *problems);
/* The offset of the first character that YAML does not allow, or `count` if there is none. */
size_t tdm__utf8_check(const char *bytes, size_t count);
/* Whether the text is UTF-8, with any characters. */
bool tdm__utf8_is_valid(const char *text);
/* Decodes one valid character; returns its length in bytes. */
size_t tdm__utf8_next(const char *bytes, uint32_t *out);
/* Whether the character needs no escape inside double quotes; line breaks need one. */
bool tdm__yaml_is_printable(uint32_t character);
/* Whether the node is empty, ~ or null, without quotes. */
bool tdm__yaml_is_null(const tdm__yaml_node *node);

/* ---- keys.c ---------------------------------------------------------------------------------- */

typedef struct tdm__job_group {
    const char *name; /* "" for the keys at the top level */
    const char *help;
} tdm__job_group;

size_t tdm__job_group_count(void);
const tdm__job_group *tdm__job_group_at(size_t index);
/* Whether the key belongs to the group. */
bool tdm__job_group_has(const tdm__job_group *group, const tdm_job_key *key);

/* ---- keys_optim.c ---------------------------------------------------------------------------- */

#define TDM__EARLY_STOP_KEYS 3
extern const tdm_job_key tdm__optim_keys[];
extern const size_t tdm__optim_key_count;
extern const tdm_job_key tdm__table_keys[]; /* keys_table.c */
extern const size_t tdm__table_key_count;
extern const tdm_job_key tdm__sync_keys[]; /* keys_sync.c */
extern const size_t tdm__sync_key_count;
extern const tdm_job_key tdm__elastic_keys[]; /* keys_elastic.c */
extern const size_t tdm__elastic_key_count;
extern const tdm_job_key tdm__early_stop_keys[TDM__EARLY_STOP_KEYS];
/* Whether the learning rate depends on the length of the run. */
bool tdm__schedule_is_as_long(const tdm_job *job);
/* Whether the last period of local steps may be shorter than the others, so that a longer run differs before its end. */
bool tdm__period_can_be_cut(const tdm_job *job);
/* Whether the learning rate depends on evaluations. */
bool tdm__schedule_evaluates(const tdm_job *job);

/* ---- keys_layers.c --------------------------------------------------------------------------- */

/* The kinds of layers, indexed by tdm_job_layer_kind; each is a mapping of its settings. */
extern const tdm_job_key tdm__layer_keys[TDM_JOB_LAYER_KIND_COUNT];

/* ---- lookup.c -------------------------------------------------------------------------------- */

/* The index of a key or group; SIZE_MAX if it does not exist. */
size_t tdm__key_find(const char *path);
size_t tdm__group_find(const char *name);
const char *tdm__key_leaf(const tdm_job_key *key); /* "batch" of "train.batch" */
/* The key or group that the user probably meant by `leaf` in `group` ("" at the top level); or NULL. */
const char *tdm__key_suggest(const char *group, const char *leaf);
/* Whether `word` is one of the words of `list`, which are separated by single spaces. */
bool tdm__has_word(const char *list, const char *word);
/* The i-th word of "a | b | c" in `out`; false past the end. */
bool tdm__choice_at(const char *choices, size_t index, char out[32]);
int tdm__choice_find(const char *choices, const char *word); /* -1: none */

/* Describes what a key accepts: "a whole number from 1 to 64, or the word auto". */
void tdm__key_wants(const tdm_job_key *key, tdm_str *out);
/* Describes only the range: "from 1 to 64", "above 0", "of at least 0". */
void tdm__key_range(const tdm_job_key *key, tdm_str *out);

/* ---- slots.c --------------------------------------------------------------------------------- */

typedef struct tdm__job_slot {
    const tdm__yaml_node *node; /* NULL: not given */
    tdm__job_position place;    /* of the key, when given */
    bool from_override;
    bool ok; /* the job's field holds a checked value */
} tdm__job_slot;

typedef struct tdm__loader {
    const char *file; /* its name in messages */
    const char *dir;  /* absolute; the file's relative paths are relative to it */
    tdm_arena *arena; /* the document's */
    tdm_arena *scratch;
    tdm__problem_list problems;
    tdm__problem_list warnings;
    tdm__job_slot *slots;            /* one for each key */
    tdm__job_position *group_places; /* one for each group; line 0: not in the file */
    tdm_job *job;
    bool no_file_checks;
    bool other_library; /* model.library does not have the hash model.library_sha256 */
    int layer_depth;    /* current nesting of lists of layers */
} tdm__loader;

/* Returns false, after a problem, if the document is not a mapping. */
bool tdm__slots_fill(tdm__loader *loader, const tdm__yaml_node *root);
/* The value of an override or a default as a node; NULL after a problem. */
const tdm__yaml_node *tdm__node_from_text(tdm__loader *loader, const tdm_job_key *key,
                                          const char *value);
void tdm__slots_override(tdm__loader *loader, const char *override);
/* Reports keys that exclude each other, and keys without the key that they need. */
void tdm__slots_check_pairs(tdm__loader *loader);

/* ---- value.c --------------------------------------------------------------------------------- */

/* Checks the node against the key's row and stores it in `base`, which is the job or the struct of
 * a mapping; false after a problem. */
bool tdm__value_store(tdm__loader *loader, const tdm_job_key *key, const tdm__job_slot *slot,
                      void *base);
bool tdm__name_is_valid(const char *name);
/* Whether the text is a number: digits, optionally with a fraction and an exponent. */
bool tdm__text_is_real(const char *text);

/* ---- maps.c ---------------------------------------------------------------------------------- */

/* Store values of TDM_JOB_KEY_MAP and TDM_JOB_KEY_MAP_LIST in `field` of the job. */
bool tdm__map_store(tdm__loader *loader, const tdm_job_key *key, const tdm__yaml_node *node,
                    bool from_override, void *field);
bool tdm__map_list_store(tdm__loader *loader, const tdm_job_key *key, const tdm__yaml_node *node,
                         bool from_override, void *field);

/* Fills the struct of one mapping from its node, with defaults for keys that were not given. */
bool tdm__map_fill(tdm__loader *loader, const tdm_job_key *key, const tdm__yaml_node *map,
                   bool from_override, void *item);

/* A list of mappings as stored in a job, for any type of struct. */
typedef struct tdm__map_list {
    const void *items;
    size_t count;
} tdm__map_list;

/* ---- options.c ------------------------------------------------------------------------------- */

/* Stores a value of TDM_JOB_KEY_OPTIONS. */
bool tdm__options_store(tdm__loader *loader, const tdm_job_key *key, const tdm__yaml_node *node,
                        void *field);
/* Sets a single option such as "model.options.width"; false if the path is not an option. */
bool tdm__options_override(tdm__loader *loader, const char *path, const char *value);
/* Hashes the file model.library and stores the hash in model.library_sha256, or compares it. */
void tdm__library_identify(tdm__loader *loader);

/* ---- layers.c -------------------------------------------------------------------------------- */

/* Stores a value of TDM_JOB_KEY_LAYERS. */
bool tdm__layers_store(tdm__loader *loader, const tdm_job_key *key, const tdm__yaml_node *node,
                       bool from_override, tdm_job_layer_list *field);

/* ---- presets.c ------------------------------------------------------------------------------- */

/* Sets keys that were not given but follow from others: model.kind from a list of layers, and the
 * sizes of model.preset. */
void tdm__presets_apply(tdm__loader *loader);

/* ---- rules.c --------------------------------------------------------------------------------- */

void tdm__rules_check(tdm__loader *loader);
/* Warns about keys that were given but that the job's model does not use. */
void tdm__rules_warn(tdm__loader *loader);

/* ---- show.c ---------------------------------------------------------------------------------- */

/* Adds the value of a key as one line of canonical YAML: equal values give equal texts. `base` is
 * the job or the struct of a mapping. */
void tdm__value_show(const tdm_job_key *key, const void *base, tdm_str *out);
/* Whether the field has a value; an optional path or number that was not given has none. */
bool tdm__value_is_set(const tdm_job_key *key, const void *base);

#endif
