/*
 * keys_elastic.c: the rows of the table of keys for what keeps a run alive: checkpoints, the store in
 * which processes find each other, and who may come and go. How the table works: keys.c. None of these
 * decides the result: a run with failures ends with the bits of one without.
 */
#include "job/internal.h"

#define FIELD(member) offsetof(tdm_job, member)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

const tdm_job_key tdm__elastic_keys[] = {
    {
        .path = "store",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(store),
        .fallback = "local",
        .choices = "local | etcd",
        .also_called = "rdzv_backend kv",
        .help = "Where the processes of a run find and watch each other. local is memory of this "
                "host, without a server; etcd is a cluster of servers, for several hosts: see "
                "'etcd.endpoints'.",
    },
    {
        .path = "checkpoint.every_epochs",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(checkpoint.every_epochs),
        .fallback = "1",
        .min = 1,
        .max = TDM__MAX_JOB_INT,
        .word = "never",
        .help = "After how many epochs a checkpoint is saved. The end of a run is always saved.",
    },
    {
        .path = "checkpoint.every_steps",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(checkpoint.every_steps),
        .fallback = "never",
        .min = 1,
        .max = TDM__MAX_JOB_INT,
        .word = "never",
        .also_called = "save_steps",
        .help = "After how many steps a checkpoint is saved, besides those of "
                "'checkpoint.every_epochs'.",
    },
    {
        .path = "checkpoint.every_minutes",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(checkpoint.every_minutes),
        .fallback = "0",
        .min = 0,
        .max = 525600,
        .also_called = "save_interval every_seconds every_hours",
        .help =
            "After how many minutes since the last one a checkpoint is saved, whatever the other "
            "keys say. 0 does not look at the clock.",
    },
    {
        .path = "checkpoint.keep",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(checkpoint.keep),
        .fallback = "3",
        .min = 1,
        .max = TDM__MAX_JOB_INT,
        .word = "all",
        .also_called = "save_total_limit keep_last",
        .help = "How many checkpoints stay on disk; older ones are removed. When the disk is full, "
                "fewer may stay, but always the newest good one.",
    },
    {
        .path = "checkpoint.keep_every",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(checkpoint.keep_every),
        .fallback = "never",
        .min = 1,
        .max = TDM__MAX_JOB_INT,
        .word = "never",
        .also_called = "keep_period",
        .help = "Of which steps checkpoints stay for good, besides the newest ones: those that are "
                "multiples of this.",
    },
    {
        .path = "checkpoint.keep_best",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(checkpoint.keep_best),
        .fallback = "0",
        .min = 0,
        .max = 1000,
        .also_called = "save_best save_top_k load_best_model_at_end",
        .help =
            "How many checkpoints stay because their 'checkpoint.metric' was the best, besides "
            "the newest ones. Only checkpoints of steps at which the test set was measured count.",
    },
    {
        .path = "checkpoint.metric",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(checkpoint.metric),
        .fallback = "test_loss",
        .choices = "test_loss | test_accuracy",
        .also_called = "monitor metric_for_best_model",
        .help = "What 'checkpoint.keep_best' goes by.",
    },
    {
        .path = "checkpoint.compress",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(checkpoint.compress),
        .fallback = "none",
        .choices = "none | zstd",
        .also_called = "compression",
        .help =
            "Whether checkpoints are packed. zstd makes them smaller and slower to write; other "
            "programs must unpack such a file before they can read it.",
    },
    {
        .path = "checkpoint.background",
        .type = TDM_JOB_KEY_BOOL,
        .offset = FIELD(checkpoint.background),
        .fallback = "true",
        .also_called = "async_save asynchronous",
        .help =
            "Whether training goes on while a checkpoint is written; it takes memory for a copy "
            "of the state meanwhile. Otherwise training waits.",
    },
    {
        .path = "checkpoint.retry_s",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(checkpoint.retry_s),
        .fallback = "300",
        .min = 0,
        .max = 31536000,
        .also_called = "retry retries save_retries",
        .help = "For how many seconds the last checkpoint of a run is tried again when the disk is "
                "full, read-only or failing, with pauses that grow from half a second to thirty; "
                "before the end, training goes on meanwhile. 0 tries nothing again.",
    },
    {
        .path = "checkpoint.ledger",
        .type = TDM_JOB_KEY_BOOL,
        .offset = FIELD(checkpoint.ledger),
        .fallback = "false",
        .also_called = "ledger",
        .help = "Whether the run keeps a ledger of which samples each step has trained, by which "
                "'tandem ledger RUN' proves that each was trained exactly once in every epoch.",
    },
    {
        .path = "elastic.min",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(elastic.min),
        .fallback = "1",
        .min = 1,
        .max = 65536,
        .also_called = "min_nodes min_np min_workers",
        .help = "The fewest ranks with which training goes on; with fewer it waits for more (see "
                "'elastic.wait'). --min sets it, too.",
    },
    {
        .path = "elastic.max",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(elastic.max),
        .fallback = "auto",
        .min = 1,
        .max = 65536,
        .word = "auto",
        .also_called = "max_nodes max_np max_workers",
        .help = "The most ranks that may take part; auto is as many as training is started with. "
                "--max sets it, too.",
    },
    {
        .path = "elastic.wait",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(elastic.wait),
        .fallback = "600",
        .min = 0,
        .max = 31536000,
        .also_called = "elastic_timeout",
        .help =
            "How many seconds training waits for 'elastic.min' ranks before it gives up. What was "
            "trained stays in the newest checkpoint.",
    },
    {
        .path = "elastic.heartbeat",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(elastic.heartbeat),
        .fallback = "0",
        .min = 0,
        .max = 3600,
        .also_called = "heartbeat_timeout",
        .help = "Seconds without a sign of life after which a rank counts as gone. 0 goes by how "
                "regular these signs have been, and is never below one second.",
    },
    {
        .path = "elastic.stall",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(elastic.stall),
        .fallback = "0",
        .min = 0,
        .max = 86400,
        .also_called = "stall_timeout timeout",
        .help = "Seconds that a rank which is alive may keep the others waiting before it is "
                "replaced. 0 goes by how long steps take, and is never below thirty seconds.",
    },
    {
        .path = "elastic.mirror",
        .type = TDM_JOB_KEY_BOOL,
        .offset = FIELD(elastic.mirror),
        .fallback = "false",
        .also_called = "redundancy replica",
        .help =
            "Whether every host keeps a whole copy of parameters and optimiser state, brought up to "
            "date in every step, whatever 'parallel.zero' shares out, so that a host that dies "
            "takes nothing along; with 'parallel.zero: 0' it is so anyway. Otherwise training "
            "goes back to the newest checkpoint then.",
    },
    {
        .path = "elastic.restarts",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(elastic.restarts),
        .fallback = "5",
        .min = 0,
        .max = 1000000,
        .also_called = "max_restarts",
        .help =
            "How often a worker that died is started again within 'elastic.restart_window'; then "
            "the run goes on without it.",
    },
    {
        .path = "elastic.restart_window",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(elastic.restart_window),
        .fallback = "300",
        .min = 1,
        .max = 31536000,
        .help = "Seconds within which 'elastic.restarts' are counted.",
    },
    {
        .path = "elastic.grace",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(elastic.grace),
        .fallback = "25",
        .min = 0,
        .max = 86400,
        .also_called = "grace_period termination_grace_period",
        .help =
            "Seconds that training has, after SIGTERM, to finish its step and save a checkpoint. "
            "Batch systems kill after some time: stay below it.",
    },
    {
        .path = "etcd.endpoints",
        .type = TDM_JOB_KEY_STRING,
        .offset = FIELD(etcd.endpoints),
        .fallback = "http://127.0.0.1:2379",
        .also_called = "hosts url",
        .help = "For 'store: etcd': the URLs of its members, with commas between them.",
    },
    {
        .path = "etcd.user",
        .type = TDM_JOB_KEY_STRING,
        .offset = FIELD(etcd.user),
        .also_called = "username",
        .help = "For 'store: etcd': who asks, where it has users.",
    },
    {
        .path = "etcd.password_file",
        .type = TDM_JOB_KEY_PATH,
        .offset = FIELD(etcd.password_file),
        .help = "For 'store: etcd': a file with the user's password.",
    },
    {
        .path = "etcd.ca",
        .type = TDM_JOB_KEY_PATH,
        .offset = FIELD(etcd.ca),
        .also_called = "cacert ca_file",
        .help =
            "For 'store: etcd' over https: the certificate authority, in PEM, that its members' "
            "certificates must come from.",
    },
    {
        .path = "etcd.certificate",
        .type = TDM_JOB_KEY_PATH,
        .offset = FIELD(etcd.certificate),
        .also_called = "cert cert_file",
        .help = "For 'store: etcd' over https: this client's certificate, in PEM.",
    },
    {
        .path = "etcd.key",
        .type = TDM_JOB_KEY_PATH,
        .offset = FIELD(etcd.key),
        .also_called = "key_file",
        .help = "For 'store: etcd' over https: the key of 'etcd.certificate', in PEM.",
    },
};

const size_t tdm__elastic_key_count = COUNT(tdm__elastic_keys);
