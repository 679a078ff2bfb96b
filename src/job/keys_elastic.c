/*
 * keys_elastic.c: rows of the table of keys for fault tolerance: checkpoints, the store and elastic
 * membership. keys.c describes the table. None of these keys affects the result: a run with
 * failures ends with the same bits as a run without.
 */
#include "job/keys.h"

const tdm_job_key tdm__elastic_keys[] = {
    {
        KEY("store", CHOICE, store),
        .fallback = "local",
        .choices = "local | etcd",
        .also_called = "rdzv_backend kv",
        .help = "Where the processes of a run find and monitor each other. local is shared "
                "memory on this host, without a server; etcd is a cluster of servers, for "
                "several hosts: see 'etcd.endpoints'.",
    },
    {
        KEY("checkpoint.every_epochs", INT, checkpoint.every_epochs),
        .fallback = "1",
        RANGE(1, TDM__MAX_JOB_INT),
        .word = "never",
        .help = "The number of epochs between checkpoints. The end of a run is always saved.",
    },
    {
        KEY("checkpoint.every_steps", INT, checkpoint.every_steps),
        .fallback = "never",
        RANGE(1, TDM__MAX_JOB_INT),
        .word = "never",
        .also_called = "save_steps",
        .help = "The number of steps between checkpoints, in addition to "
                "'checkpoint.every_epochs'.",
    },
    {
        KEY("checkpoint.every_minutes", REAL, checkpoint.every_minutes),
        .fallback = "0",
        RANGE(0, 525600),
        .also_called = "save_interval every_seconds every_hours",
        .help = "The maximum number of minutes between checkpoints, in addition to the other "
                "keys. 0 disables it.",
    },
    {
        KEY("checkpoint.keep", INT, checkpoint.keep),
        .fallback = "3",
        RANGE(1, TDM__MAX_JOB_INT),
        .word = "all",
        .also_called = "save_total_limit keep_last",
        .help = "The number of checkpoints to keep; older ones are removed. If the disk is full, "
                "fewer are kept, but always the newest valid one.",
    },
    {
        KEY("checkpoint.keep_every", INT, checkpoint.keep_every),
        .fallback = "never",
        RANGE(1, TDM__MAX_JOB_INT),
        .word = "never",
        .also_called = "keep_period",
        .help = "Checkpoints of steps that are multiples of this are kept permanently, in "
                "addition to the newest ones.",
    },
    {
        KEY("checkpoint.keep_best", INT, checkpoint.keep_best),
        .fallback = "0",
        RANGE(0, 1000),
        .also_called = "save_best save_top_k load_best_model_at_end",
        .help = "The number of checkpoints with the best 'checkpoint.metric' to keep, in "
                "addition to the newest ones. Only checkpoints of steps with an evaluation "
                "count.",
    },
    {
        KEY("checkpoint.metric", CHOICE, checkpoint.metric),
        .fallback = "test_loss",
        .choices = "test_loss | test_accuracy",
        .also_called = "monitor metric_for_best_model",
        .help = "The metric that 'checkpoint.keep_best' compares.",
    },
    {
        KEY("checkpoint.compress", CHOICE, checkpoint.compress),
        .fallback = "none",
        .choices = "none | zstd",
        .also_called = "compression",
        .help = "Whether checkpoints are compressed. zstd makes them smaller and slower to "
                "write; other programs must decompress such a file before they can read it.",
    },
    {
        KEY("checkpoint.background", BOOL, checkpoint.background),
        .fallback = "true",
        .also_called = "async_save asynchronous",
        .help = "Whether training continues while a checkpoint is written, which needs memory "
                "for a copy of the state. Otherwise training waits.",
    },
    {
        KEY("checkpoint.retry_s", REAL, checkpoint.retry_s),
        .fallback = "300",
        RANGE(0, 31536000),
        .also_called = "retry retries save_retries",
        .help = "How many seconds to retry the last checkpoint of a run if the disk is full, "
                "read-only or failing. The pauses grow from half a second to thirty. Before the "
                "end of the run, training continues meanwhile. 0 disables retries.",
    },
    {
        KEY("checkpoint.ledger", BOOL, checkpoint.ledger),
        .fallback = "false",
        .also_called = "ledger",
        .help = "Whether the run writes a ledger of the samples that each step has trained. From "
                "it, 'tandem ledger RUN' verifies that each sample was trained exactly once in "
                "every epoch.",
    },
    {
        KEY("elastic.min", INT, elastic.min),
        .fallback = "1",
        RANGE(1, 65536),
        .also_called = "min_nodes min_np min_workers",
        .help = "The minimum number of ranks. With fewer, training waits for more (see "
                "'elastic.wait'). The option --min sets it as well.",
    },
    {
        KEY("elastic.max", INT, elastic.max),
        .fallback = "auto",
        RANGE(1, 65536),
        .word = "auto",
        .also_called = "max_nodes max_np max_workers",
        .help = "The maximum number of ranks; auto is the number of ranks at the start. The "
                "option --max sets it as well.",
    },
    {
        KEY("elastic.wait", REAL, elastic.wait),
        .fallback = "600",
        RANGE(0, 31536000),
        .also_called = "elastic_timeout",
        .help = "How many seconds training waits for 'elastic.min' ranks before the run ends "
                "with an error. The newest checkpoint remains.",
    },
    {
        KEY("elastic.heartbeat", REAL, elastic.heartbeat),
        .fallback = "0",
        RANGE(0, 3600),
        .also_called = "heartbeat_timeout",
        .help = "The number of seconds without a heartbeat after which a rank is declared dead. "
                "0 derives it from the regularity of the heartbeats; it is then at least one "
                "second.",
    },
    {
        KEY("elastic.stall", REAL, elastic.stall),
        .fallback = "0",
        RANGE(0, 86400),
        .also_called = "stall_timeout timeout",
        .help = "The number of seconds that a live rank may keep the other ranks waiting before "
                "it is replaced. 0 derives it from the duration of the steps; it is then at "
                "least thirty seconds.",
    },
    {
        KEY("elastic.mirror", BOOL, elastic.mirror),
        .fallback = "false",
        .also_called = "redundancy replica",
        .help = "Whether every host keeps a complete copy of parameters and optimiser state, "
                "updated in every step, even if 'parallel.zero' shards them. The loss of a host "
                "then loses no step. Without it, training resumes from the newest checkpoint. "
                "With 'parallel.zero: 0' every host has a complete copy anyway.",
    },
    {
        KEY("elastic.restarts", INT, elastic.restarts),
        .fallback = "5",
        RANGE(0, 1000000),
        .also_called = "max_restarts",
        .help = "How often a worker that died is restarted within 'elastic.restart_window'. "
                "After that, the run continues without it.",
    },
    {
        KEY("elastic.restart_window", REAL, elastic.restart_window),
        .fallback = "300",
        RANGE(1, 31536000),
        .help = "The number of seconds over which 'elastic.restarts' are counted.",
    },
    {
        KEY("elastic.grace", REAL, elastic.grace),
        .fallback = "25",
        RANGE(0, 86400),
        .also_called = "grace_period termination_grace_period",
        .help = "The number of seconds after SIGTERM that training has to finish its step and "
                "save a checkpoint. Batch systems send SIGKILL after a delay: choose less than "
                "that.",
    },
    {
        KEY("etcd.endpoints", STRING, etcd.endpoints),
        .fallback = "http://127.0.0.1:2379",
        .also_called = "hosts url",
        .help = "For 'store: etcd': the URLs of its members, separated by commas.",
    },
    {
        KEY("etcd.user", STRING, etcd.user),
        .also_called = "username",
        .help = "For 'store: etcd': the user name, if authentication is enabled.",
    },
    {
        KEY("etcd.password_file", PATH, etcd.password_file),
        .help = "For 'store: etcd': a file with the password of the user.",
    },
    {
        KEY("etcd.ca", PATH, etcd.ca),
        .also_called = "cacert ca_file",
        .help = "For 'store: etcd' over https: the certificate authority that signed the "
                "certificates of its members, in PEM.",
    },
    {
        KEY("etcd.certificate", PATH, etcd.certificate),
        .also_called = "cert cert_file",
        .help = "For 'store: etcd' over https: the certificate of this client, in PEM.",
    },
    {
        KEY("etcd.key", PATH, etcd.key),
        .also_called = "key_file",
        .help = "For 'store: etcd' over https: the private key of 'etcd.certificate', in PEM.",
    },
};

const size_t tdm__elastic_key_count = COUNT(tdm__elastic_keys);
