/*
 * keys_elastic.c: rows of the table of keys for fault tolerance: checkpoints, the store and elastic
 * membership. keys.c describes the table. None of these keys affects the result: a run with
 * failures ends with the same bits as a run without.
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
        .help = "Where the processes of a run find and monitor each other. local is shared "
                "memory on this host, without a server; etcd is a cluster of servers, for "
                "several hosts: see 'etcd.endpoints'.",
    },
    {
        .path = "checkpoint.every_epochs",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(checkpoint.every_epochs),
        .fallback = "1",
        .min = 1,
        .max = TDM__MAX_JOB_INT,
        .word = "never",
        .help = "The number of epochs between checkpoints. The end of a run is always saved.",
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
        .help = "The number of steps between checkpoints, in addition to "
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
        .help = "The maximum number of minutes between checkpoints, in addition to the other "
                "keys. 0 disables it.",
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
        .help = "The number of checkpoints to keep; older ones are removed. If the disk is full, "
                "fewer are kept, but always the newest valid one.",
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
        .help = "Checkpoints of steps that are multiples of this are kept permanently, in "
                "addition to the newest ones.",
    },
    {
        .path = "checkpoint.keep_best",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(checkpoint.keep_best),
        .fallback = "0",
        .min = 0,
        .max = 1000,
        .also_called = "save_best save_top_k load_best_model_at_end",
        .help = "The number of checkpoints with the best 'checkpoint.metric' to keep, in "
                "addition to the newest ones. Only checkpoints of steps with an evaluation "
                "count.",
    },
    {
        .path = "checkpoint.metric",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(checkpoint.metric),
        .fallback = "test_loss",
        .choices = "test_loss | test_accuracy",
        .also_called = "monitor metric_for_best_model",
        .help = "The metric that 'checkpoint.keep_best' compares.",
    },
    {
        .path = "checkpoint.compress",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(checkpoint.compress),
        .fallback = "none",
        .choices = "none | zstd",
        .also_called = "compression",
        .help = "Whether checkpoints are compressed. zstd makes them smaller and slower to "
                "write; other programs must decompress such a file before they can read it.",
    },
    {
        .path = "checkpoint.background",
        .type = TDM_JOB_KEY_BOOL,
        .offset = FIELD(checkpoint.background),
        .fallback = "true",
        .also_called = "async_save asynchronous",
        .help = "Whether training continues while a checkpoint is written, which needs memory "
                "for a copy of the state. Otherwise training waits.",
    },
    {
        .path = "checkpoint.retry_s",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(checkpoint.retry_s),
        .fallback = "300",
        .min = 0,
        .max = 31536000,
        .also_called = "retry retries save_retries",
        .help = "How many seconds to retry the last checkpoint of a run if the disk is full, "
                "read-only or failing. The pauses grow from half a second to thirty. Before the "
                "end of the run, training continues meanwhile. 0 disables retries.",
    },
    {
        .path = "checkpoint.ledger",
        .type = TDM_JOB_KEY_BOOL,
        .offset = FIELD(checkpoint.ledger),
        .fallback = "false",
        .also_called = "ledger",
        .help = "Whether the run writes a ledger of the samples that each step has trained. From "
                "it, 'tandem ledger RUN' verifies that each sample was trained exactly once in "
                "every epoch.",
    },
    {
        .path = "elastic.min",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(elastic.min),
        .fallback = "1",
        .min = 1,
        .max = 65536,
        .also_called = "min_nodes min_np min_workers",
        .help = "The minimum number of ranks. With fewer, training waits for more (see "
                "'elastic.wait'). The option --min sets it as well.",
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
        .help = "The maximum number of ranks; auto is the number of ranks at the start. The "
                "option --max sets it as well.",
    },
    {
        .path = "elastic.wait",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(elastic.wait),
        .fallback = "600",
        .min = 0,
        .max = 31536000,
        .also_called = "elastic_timeout",
        .help = "How many seconds training waits for 'elastic.min' ranks before the run ends "
                "with an error. The newest checkpoint remains.",
    },
    {
        .path = "elastic.heartbeat",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(elastic.heartbeat),
        .fallback = "0",
        .min = 0,
        .max = 3600,
        .also_called = "heartbeat_timeout",
        .help = "The number of seconds without a heartbeat after which a rank is declared dead. "
                "0 derives it from the regularity of the heartbeats; it is then at least one "
                "second.",
    },
    {
        .path = "elastic.stall",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(elastic.stall),
        .fallback = "0",
        .min = 0,
        .max = 86400,
        .also_called = "stall_timeout timeout",
        .help = "The number of seconds that a live rank may keep the other ranks waiting before "
                "it is replaced. 0 derives it from the duration of the steps; it is then at "
                "least thirty seconds.",
    },
    {
        .path = "elastic.mirror",
        .type = TDM_JOB_KEY_BOOL,
        .offset = FIELD(elastic.mirror),
        .fallback = "false",
        .also_called = "redundancy replica",
        .help = "Whether every host keeps a complete copy of parameters and optimiser state, "
                "updated in every step, even if 'parallel.zero' shards them. The loss of a host "
                "then loses no step. Without it, training resumes from the newest checkpoint. "
                "With 'parallel.zero: 0' every host has a complete copy anyway.",
    },
    {
        .path = "elastic.restarts",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(elastic.restarts),
        .fallback = "5",
        .min = 0,
        .max = 1000000,
        .also_called = "max_restarts",
        .help = "How often a worker that died is restarted within 'elastic.restart_window'. "
                "After that, the run continues without it.",
    },
    {
        .path = "elastic.restart_window",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(elastic.restart_window),
        .fallback = "300",
        .min = 1,
        .max = 31536000,
        .help = "The number of seconds over which 'elastic.restarts' are counted.",
    },
    {
        .path = "elastic.grace",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(elastic.grace),
        .fallback = "25",
        .min = 0,
        .max = 86400,
        .also_called = "grace_period termination_grace_period",
        .help = "The number of seconds after SIGTERM that training has to finish its step and "
                "save a checkpoint. Batch systems send SIGKILL after a delay: choose less than "
                "that.",
    },
    {
        .path = "etcd.endpoints",
        .type = TDM_JOB_KEY_STRING,
        .offset = FIELD(etcd.endpoints),
        .fallback = "http://127.0.0.1:2379",
        .also_called = "hosts url",
        .help = "For 'store: etcd': the URLs of its members, separated by commas.",
    },
    {
        .path = "etcd.user",
        .type = TDM_JOB_KEY_STRING,
        .offset = FIELD(etcd.user),
        .also_called = "username",
        .help = "For 'store: etcd': the user name, if authentication is enabled.",
    },
    {
        .path = "etcd.password_file",
        .type = TDM_JOB_KEY_PATH,
        .offset = FIELD(etcd.password_file),
        .help = "For 'store: etcd': a file with the password of the user.",
    },
    {
        .path = "etcd.ca",
        .type = TDM_JOB_KEY_PATH,
        .offset = FIELD(etcd.ca),
        .also_called = "cacert ca_file",
        .help = "For 'store: etcd' over https: the certificate authority that signed the "
                "certificates of its members, in PEM.",
    },
    {
        .path = "etcd.certificate",
        .type = TDM_JOB_KEY_PATH,
        .offset = FIELD(etcd.certificate),
        .also_called = "cert cert_file",
        .help = "For 'store: etcd' over https: the certificate of this client, in PEM.",
    },
    {
        .path = "etcd.key",
        .type = TDM_JOB_KEY_PATH,
        .offset = FIELD(etcd.key),
        .also_called = "key_file",
        .help = "For 'store: etcd' over https: the private key of 'etcd.certificate', in PEM.",
    },
};

const size_t tdm__elastic_key_count = COUNT(tdm__elastic_keys);
