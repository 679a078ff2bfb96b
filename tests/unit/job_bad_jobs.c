/*
 * job_bad_jobs.c: invalid jobs, with the exact text of every problem.
 */
#include "unit/job_cases.h"

const bad_job bad_jobs[] = {
    /* ---- keys nobody knows */
    {JOB("data: {train: x.csv}\ntrain:\n  epoch: 3\n"), NO_SET,
     "job.yaml:3:3: unknown key 'train.epoch'; did you mean 'train.epochs'?\n"},
    {JOB("data: {train: x.csv}\ntrian:\n  batch: 3\n"), NO_SET,
     "job.yaml:2:1: unknown key 'trian'; did you mean 'train'?\n"},
    {JOB("data: {train: x.csv}\nepochs: 3\n"), NO_SET,
     "job.yaml:2:1: unknown key 'epochs'; did you mean 'train.epochs'?\n"},
    {JOB("data: {train: x.csv}\nbatch_size: 3\n"), NO_SET,
     "job.yaml:2:1: unknown key 'batch_size'; did you mean 'train.batch'?\n"},
    {JOB("data: {train: x.csv}\ntrain:\n  lr: 0.1\n"), NO_SET,
     "job.yaml:3:3: unknown key 'train.lr'; did you mean 'optim.lr'?\n"},
    {JOB("data: {train: x.csv}\nmodel:\n  hidden_layers: [3]\n"), NO_SET,
     "job.yaml:3:3: unknown key 'model.hidden_layers'; did you mean 'model.hidden'?\n"},
    {JOB("data: {train: x.csv}\noptim: {learning_rate: 1}\n"), NO_SET,
     "job.yaml:2:9: unknown key 'optim.learning_rate'; did you mean 'optim.lr'?\n"},
    {JOB("data: {train: x.csv, normalize: none}\n"), NO_SET,
     "job.yaml:1:22: unknown key 'data.normalize'; did you mean 'data.normalise'?\n"},
    {JOB("data: {train: x.csv}\nzebra: 1\n"), NO_SET,
     "job.yaml:2:1: unknown key 'zebra'; 'tandem job keys' lists them all\n"},
    {JOB("data: {train: x.csv}\ntrain: {quagga: 1}\n"), NO_SET,
     "job.yaml:2:9: unknown key 'train.quagga'; 'tandem job keys' lists them all\n"},
    {JOB("data: {train: x.csv}\n\"\": 1\n"), NO_SET,
     "job.yaml:2:1: unknown key ''; 'tandem job keys' lists them all\n"},
    {JOB("data: {train: x.csv}\n"
         "kxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
         "xxxxxxxxxxxxxxx: 1\n"),
     NO_SET,
     "job.yaml:2:1: unknown key 'kxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'; 'tandem "
     "job keys' lists them all\n"},
    {JOB("data: {train: x.csv}\ntrain.batch: 3\n"), NO_SET,
     "job.yaml:2:1: 'train.batch' must be nested: write 'batch:' indented below 'train:'\n"},
    {JOB("data: {train: x.csv}\ntrain:\n  optim.lr: 3\n"), NO_SET,
     "job.yaml:3:3: 'optim.lr' must be nested: write 'lr:' indented below 'optim:'\n"},
    {JOB("data: {train: x.csv}\ntrain.bach: 3\n"), NO_SET,
     "job.yaml:2:1: unknown key 'train.bach'; did you mean 'train.batch'?\n"},
    /* ---- the wrong shape */
    {JOB("data: {train: x.csv}\ntrain: 5\n"), NO_SET,
     "job.yaml:2:8: 'train' is a group of keys, such as 'train.batch'; got '5'\n"},
    {JOB("data: {train: x.csv}\ntrain: [1]\n"), NO_SET,
     "job.yaml:2:8: 'train' is a group of keys, such as 'train.batch'; got a list\n"},
    {JOB("data: {train: x.csv}\nseed: {a: 1}\n"), NO_SET,
     "job.yaml:2:7: 'seed' expects a whole number, got a mapping\n"},
    {JOB("data: {train: x.csv}\nseed: [1]\n"), NO_SET,
     "job.yaml:2:7: 'seed' expects a whole number, got a list\n"},
    {JOB("data: {train: x.csv}\nname: [a]\n"), NO_SET,
     "job.yaml:2:7: 'name' expects 1 to 64 letters, digits, '.', '_' or '-', not beginning with "
     "'.' or '-', got a list\n"},
    {JOB("data: {train: [x]}\n"), NO_SET,
     "job.yaml:1:15: 'data.train' expects the path of a file, got a list\n"},
    {JOB("data: {train: x.csv}\noptim: {lr: {a: 1}}\n"), NO_SET,
     "job.yaml:2:13: 'optim.lr' expects a number, got a mapping\n"},
    {JOB("data: {train: x.csv, shuffle: [true]}\n"), NO_SET,
     "job.yaml:1:31: 'data.shuffle' expects true or false, got a list\n"},
    {JOB("data: {train: x.csv}\nmodel: {activation: {}}\n"), NO_SET,
     "job.yaml:2:21: 'model.activation' expects relu, gelu, tanh or sigmoid, got a mapping\n"},
    {JOB("data: {train: x.csv}\nmodel: {hidden: 64}\n"), NO_SET,
     "job.yaml:2:17: 'model.hidden' expects a list of whole numbers, such as [128, 64], got '64'\n"},
    {JOB("data: {train: x.csv}\nmodel: {hidden: {a: 1}}\n"), NO_SET,
     "job.yaml:2:17: 'model.hidden' expects a list of whole numbers, such as [128, 64], got a "
     "mapping\n"},
    {JOB("data: {train: x.csv}\nmodel: {hidden: [64, [1]]}\n"), NO_SET,
     "job.yaml:2:22: 'model.hidden' expects a whole number, got a list\n"},
    {JOB("- a\n- b\n"), NO_SET,
     "job.yaml:1:1: a job is a mapping of keys, such as 'seed: 1'; got a list\n"},
    {JOB("just words\n"), NO_SET,
     "job.yaml:1:1: a job is a mapping of keys, such as 'seed: 1'; got 'just words'\n"},
    {JOB(""), NO_SET,
     "job.yaml: the file is empty; a job needs at least 'data:' and, indented below it, 'train: "
     "FILE'\n"},
    {JOB("# only a comment\n"), NO_SET,
     "job.yaml: the file is empty; a job needs at least 'data:' and, indented below it, 'train: "
     "FILE'\n"},
    {JOB("---\n"), NO_SET,
     "job.yaml: the file is empty; a job needs at least 'data:' and, indented below it, 'train: "
     "FILE'\n"},
    {JOB("~\n"), NO_SET,
     "job.yaml: the file is empty; a job needs at least 'data:' and, indented below it, 'train: "
     "FILE'\n"},
    /* ---- whole numbers */
    {JOB("data: {train: x.csv}\ntrain: {batch: abc}\n"), NO_SET,
     "job.yaml:2:16: 'train.batch' expects a whole number, got 'abc'\n"},
    {JOB("data: {train: x.csv}\ntrain: {batch: 0}\n"), NO_SET,
     "job.yaml:2:16: 'train.batch' expects a whole number from 1 to 2147483647, got '0'\n"},
    {JOB("data: {train: x.csv}\ntrain: {batch: -3}\n"), NO_SET,
     "job.yaml:2:16: 'train.batch' expects a whole number from 1 to 2147483647, got '-3'\n"},
    {JOB("data: {train: x.csv}\ntrain: {batch: 2147483648}\n"), NO_SET,
     "job.yaml:2:16: 'train.batch' expects a whole number from 1 to 2147483647, got '2147483648'\n"},
    {JOB("data: {train: x.csv}\ntrain: {batch: 1e3}\n"), NO_SET,
     "job.yaml:2:16: 'train.batch' expects a whole number, got '1e3'; write it in plain digits, "
     "such as 1000\n"},
    {JOB("data: {train: x.csv}\ntrain: {batch: 0x10}\n"), NO_SET,
     "job.yaml:2:16: 'train.batch' expects a whole number, got '0x10'; write it in plain digits, "
     "such as 1000\n"},
    {JOB("data: {train: x.csv}\ntrain: {batch: 1_000}\n"), NO_SET,
     "job.yaml:2:16: 'train.batch' expects a whole number, got '1_000'; write it in plain digits, "
     "such as 1000\n"},
    {JOB("data: {train: x.csv}\ntrain: {batch: 007}\n"), NO_SET,
     "job.yaml:2:16: 'train.batch' expects a whole number, got '007'; write it in plain digits, "
     "such as 1000\n"},
    {JOB("data: {train: x.csv}\ntrain: {batch: +7}\n"), NO_SET,
     "job.yaml:2:16: 'train.batch' expects a whole number, got '+7'; write it in plain digits, "
     "such as 1000\n"},
    {JOB("data: {train: x.csv}\ntrain: {batch: 3.5}\n"), NO_SET,
     "job.yaml:2:16: 'train.batch' expects a whole number, got '3.5'; write it in plain digits, "
     "such as 1000\n"},
    {JOB("data: {train: x.csv}\ntrain: {batch: \"32\"}\n"), NO_SET,
     "job.yaml:2:16: 'train.batch' expects a whole number, got '32'; remove the quotes\n"},
    {JOB("data: {train: x.csv}\ntrain: {batch: true}\n"), NO_SET,
     "job.yaml:2:16: 'train.batch' expects a whole number, got 'true'\n"},
    {JOB("data: {train: x.csv}\nseed: -1\n"), NO_SET,
     "job.yaml:2:7: 'seed' expects a whole number from 0 to 2^53, got '-1'\n"},
    {JOB("data: {train: x.csv}\nseed: 9007199254740993\n"), NO_SET,
     "job.yaml:2:7: 'seed' expects a whole number from 0 to 2^53, got '9007199254740993'\n"},
    {JOB("data: {train: x.csv}\nseed: 99999999999999999999999999\n"), NO_SET,
     "job.yaml:2:7: 'seed' expects a whole number from 0 to 2^53, got "
     "'99999999999999999999999999'\n"},
    {JOB("data: {train: x.csv}\nparallel: {lanes: 3}\n"), NO_SET,
     "job.yaml:2:19: 'parallel.lanes' expects a power of two from 1 to 65536, or the word auto, "
     "got '3'\n"},
    {JOB("data: {train: x.csv}\nparallel: {lanes: 0}\n"), NO_SET,
     "job.yaml:2:19: 'parallel.lanes' expects a power of two from 1 to 65536, or the word auto, "
     "got '0'\n"},
    {JOB("data: {train: x.csv}\nparallel: {lanes: 131072}\n"), NO_SET,
     "job.yaml:2:19: 'parallel.lanes' expects a power of two from 1 to 65536, or the word auto, "
     "got '131072'\n"},
    {JOB("data: {train: x.csv}\nmemory: {limit: 2Gb}\n"), NO_SET,
     "job.yaml:2:17: 'memory.limit' expects a number of bytes, such as 800MB or 2.5GiB, or the word "
     "auto, got '2Gb'\n"},
    {JOB("data: {train: x.csv}\nmemory: {limit: 0}\n"), NO_SET,
     "job.yaml:2:17: 'memory.limit' expects a number of bytes, such as 800MB or 2.5GiB, or the word "
     "auto, got '0'\n"},
    {JOB("data: {train: x.csv}\nmemory: {limit: 1.5}\n"), NO_SET,
     "job.yaml:2:17: 'memory.limit' expects a number of bytes, such as 800MB or 2.5GiB, or the word "
     "auto, got '1.5'\n"},
    {JOB("data: {train: x.csv}\nmemory: {limit: 1.GB}\n"), NO_SET,
     "job.yaml:2:17: 'memory.limit' expects a number of bytes, such as 800MB or 2.5GiB, or the word "
     "auto, got '1.GB'\n"},
    {JOB("data: {train: x.csv}\nmemory: {limit: 0.0GB}\n"), NO_SET,
     "job.yaml:2:17: 'memory.limit' expects a number of bytes, such as 800MB or 2.5GiB, or the word "
     "auto, got '0.0GB'\n"},
    {JOB("data: {train: x.csv}\nmemory: {limit: 1.5B}\n"), NO_SET,
     "job.yaml:2:17: 'memory.limit' expects a number of bytes, such as 800MB or 2.5GiB, or the word "
     "auto, got '1.5B'\n"},
    {JOB("data: {train: x.csv}\nmemory: {limit: 1.5.5GB}\n"), NO_SET,
     "job.yaml:2:17: 'memory.limit' expects a number of bytes, such as 800MB or 2.5GiB, or the word "
     "auto, got '1.5.5GB'\n"},
    {JOB("data: {train: x.csv}\nmemory: {limit: 99999TB}\n"), NO_SET,
     "job.yaml:2:17: 'memory.limit' expects a number of bytes, such as 800MB or 2.5GiB, or the word "
     "auto, got '99999TB'\n"},
    {JOB("data: {train: x.csv}\nmemory: {limit: -1}\n"), NO_SET,
     "job.yaml:2:17: 'memory.limit' expects a number of bytes, such as 800MB or 2.5GiB, or the word "
     "auto, got '-1'\n"},
    {JOB("data: {train: x.csv}\nmemory: {limit: \"2GB\"}\n"), NO_SET,
     "job.yaml:2:17: 'memory.limit' expects a number of bytes, such as 800MB or 2.5GiB, or the word "
     "auto, got '2GB'\n"},
    {JOB("data: {train: x.csv}\nparallel: {lanes: many}\n"), NO_SET,
     "job.yaml:2:19: 'parallel.lanes' expects a whole number or the word auto, got 'many'\n"},
    {JOB("data: {train: x.csv}\neval: {every_epochs: 0}\n"), NO_SET,
     "job.yaml:2:22: 'eval.every_epochs' expects a whole number from 1 to 2^53, or the word "
     "never, got '0'\n"},
    {JOB("data: {train: x.csv}\ncheckpoint: {keep: some}\n"), NO_SET,
     "job.yaml:2:20: 'checkpoint.keep' expects a whole number or the word all, got 'some'\n"},
    {JOB("data: {train: x.csv}\nmodel: {hidden: [64, 0, x]}\n"), NO_SET,
     "job.yaml:2:22: 'model.hidden' expects whole numbers from 1 to 1048576, got '0'\n"
     "job.yaml:2:25: 'model.hidden' expects a whole number, got 'x'\n"},
    {JOB("data: {train: x.csv}\nmodel: {hidden: [1048577]}\n"), NO_SET,
     "job.yaml:2:18: 'model.hidden' expects whole numbers from 1 to 1048576, got '1048577'\n"},
    {JOB("data: {train: x.csv}\n"
         "model: {hidden: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, "
         "1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, "
         "1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]}\n"),
     NO_SET, "job.yaml:2:17: 'model.hidden' takes at most 64 numbers, got 65\n"},
    /* ---- numbers */
    {JOB("data: {train: x.csv}\noptim: {lr: fast}\n"), NO_SET,
     "job.yaml:2:13: 'optim.lr' expects a number, got 'fast'\n"},
    {JOB("data: {train: x.csv}\noptim: {lr: 0}\n"), NO_SET,
     "job.yaml:2:13: 'optim.lr' expects a number above 0, got '0'\n"},
    {JOB("data: {train: x.csv}\noptim: {lr: -0.1}\n"), NO_SET,
     "job.yaml:2:13: 'optim.lr' expects a number above 0, got '-0.1'\n"},
    {JOB("data: {train: x.csv}\noptim: {lr: .nan}\n"), NO_SET,
     "job.yaml:2:13: 'optim.lr' expects a number, got '.nan'; it must be finite\n"},
    {JOB("data: {train: x.csv}\noptim: {lr: -.INF}\n"), NO_SET,
     "job.yaml:2:13: 'optim.lr' expects a number, got '-.INF'; it must be finite\n"},
    {JOB("data: {train: x.csv}\noptim: {lr: 1e999}\n"), NO_SET,
     "job.yaml:2:13: 'optim.lr' expects a number, got '1e999'; it must be finite\n"},
    {JOB("data: {train: x.csv}\noptim: {lr: 1e-999}\n"), NO_SET,
     "job.yaml:2:13: 'optim.lr' expects a number above 0, got '1e-999'\n"},
    {JOB("data: {train: x.csv}\noptim: {lr: 0,1}\n"), NO_SET,
     "job.yaml:2:13: 'optim.lr' expects a number above 0, got '0'\n"
     "job.yaml:2:15: unknown key 'optim.1'; did you mean 'optim.lr'?\n"},
    {JOB("data: {train: x.csv}\noptim: {lr: 1_0.5}\n"), NO_SET,
     "job.yaml:2:13: 'optim.lr' expects a number, got '1_0.5'; write it like 0.001 or 1e-3\n"},
    {JOB("data: {train: x.csv}\noptim: {lr: 0x1p3}\n"), NO_SET,
     "job.yaml:2:13: 'optim.lr' expects a number, got '0x1p3'; write it like 0.001 or 1e-3\n"},
    {JOB("data: {train: x.csv}\noptim: {lr: \"0.1\"}\n"), NO_SET,
     "job.yaml:2:13: 'optim.lr' expects a number, got '0.1'; remove the quotes\n"},
    {JOB("data: {train: x.csv}\noptim: {lr: .}\n"), NO_SET,
     "job.yaml:2:13: 'optim.lr' expects a number, got '.'\n"},
    {JOB("data: {train: x.csv}\noptim: {lr: 1e}\n"), NO_SET,
     "job.yaml:2:13: 'optim.lr' expects a number, got '1e'; write it like 0.001 or 1e-3\n"},
    {JOB("data: {train: x.csv}\nmodel: {dropout: 1}\n"), NO_SET,
     "job.yaml:2:18: 'model.dropout' expects a number from 0 to below 1, got '1'\n"},
    {JOB("data: {train: x.csv}\noptim: {beta2: 1.5, weight_decay: -1}\n"), NO_SET,
     "job.yaml:2:16: 'optim.beta2' expects a number from 0 to below 1, got '1.5'\n"
     "job.yaml:2:35: 'optim.weight_decay' expects a number of at least 0, got '-1'\n"},
    {JOB("data: {train: x.csv, test_fraction: 1.0}\n"), NO_SET,
     "job.yaml:1:37: 'data.test_fraction' expects a number from 0 to below 1, got '1.0'\n"},
    /* ---- words */
    {JOB("data: {train: x.csv}\nmodel: {activation: Relu}\n"), NO_SET,
     "job.yaml:2:21: 'model.activation' expects relu, gelu, tanh or sigmoid, got 'Relu'; did you "
     "mean 'relu'?\n"},
    {JOB("data: {train: x.csv}\nmodel: {activation: swish9}\n"), NO_SET,
     "job.yaml:2:21: 'model.activation' expects relu, gelu, tanh or sigmoid, got 'swish9'\n"},
    {JOB("data: {train: x.csv}\noptim: {kind: adamv}\n"), NO_SET,
     "job.yaml:2:15: 'optim.kind' expects sgd, adagrad, rmsprop, adam, adamw, lamb or lion, got "
     "'adamv'; did you mean 'adam'?\n"},
    {JOB("data: {train: x.csv, header: ja}\n"), NO_SET,
     "job.yaml:1:30: 'data.header' expects auto, yes or no, got 'ja'\n"},
    {JOB("data: {train: x.csv, format: parquet}\n"), NO_SET,
     "job.yaml:1:30: 'data.format' expects auto, csv, idx, text, libsvm or criteo, "
     "got 'parquet'\n"},
    {JOB("data: {train: x.csv, shuffle: ture}\n"), NO_SET,
     "job.yaml:1:31: 'data.shuffle' expects true or false, got 'ture'; did you mean 'true'?\n"},
    {JOB("data: {train: x.csv, shuffle: \"true\"}\n"), NO_SET,
     "job.yaml:1:31: 'data.shuffle' expects true or false, got 'true'; remove the quotes\n"},
    {JOB("data: {train: x.csv, shuffle: 1}\n"), NO_SET,
     "job.yaml:1:31: 'data.shuffle' expects true or false, got '1'\n"},
    {JOB("data: {train: x.csv, last_batch: yes}\n"), NO_SET,
     "job.yaml:1:34: 'data.last_batch' expects keep or drop, got 'yes'\n"},
    /* ---- texts */
    {JOB("data: {train: x.csv}\nname: -x\n"), NO_SET,
     "job.yaml:2:7: 'name' expects 1 to 64 letters, digits, '.', '_' or '-', not beginning with "
     "'.' or '-', got '-x'\n"},
    {JOB("data: {train: x.csv}\nname: a b\n"), NO_SET,
     "job.yaml:2:7: 'name' expects 1 to 64 letters, digits, '.', '_' or '-', not beginning with "
     "'.' or '-', got 'a b'\n"},
    {JOB("data: {train: x.csv}\n"
         "name: nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn\n"),
     NO_SET,
     "job.yaml:2:7: 'name' expects 1 to 64 letters, digits, '.', '_' or '-', not beginning with "
     "'.' or '-', got 'nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn...'\n"},
    {JOB("data: {train: x.csv}\nname: \"\"\n"), NO_SET,
     "job.yaml:2:7: 'name' expects 1 to 64 letters, digits, '.', '_' or '-', not beginning with "
     "'.' or '-', got ''\n"},
    {JOB("data: {train: x.csv}\nname: ../x\n"), NO_SET,
     "job.yaml:2:7: 'name' expects 1 to 64 letters, digits, '.', '_' or '-', not beginning with "
     "'.' or '-', got '../x'\n"},
    {JOB("data: {train: x.csv, label: \"\"}\n"), NO_SET,
     "job.yaml:1:29: 'data.label' takes 1 to 1024 bytes, got 0\n"},
    {JOB("data: {train: x.csv, label: "
         "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
         "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
         "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
         "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
         "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
         "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
         "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
         "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
         "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
         "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
         "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
         "ccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc}\n"),
     NO_SET, "job.yaml:1:29: 'data.label' takes 1 to 1024 bytes, got 1025\n"},
    {JOB("data: {train: x.csv, delimiter: \";;\"}\n"), NO_SET,
     "job.yaml:1:33: 'data.delimiter' expects one ASCII character, or the word tab, got ';;'\n"},
    {JOB("data: {train: x.csv, delimiter: \"\303\251\"}\n"), NO_SET,
     "job.yaml:1:33: 'data.delimiter' expects one ASCII character, or the word tab, got "
     "'\303\251'\n"},
    {JOB("data: {train: x.csv, delimiter: \"\\x01\"}\n"), NO_SET,
     "job.yaml:1:33: 'data.delimiter' expects one ASCII character, or the word tab, got '?'\n"},
    {JOB("data: {train: x.csv, label: \"a\\0b\"}\n"), NO_SET,
     "job.yaml:1:29: a text cannot contain a zero byte; remove '\\0'\n"},
    /* ---- no value */
    {JOB("data:\n  train:\n"), NO_SET,
     "job.yaml:2:3: 'data.train' has no value; give the path of a file\n"},
    {JOB("data: {train: \"\"}\n"), NO_SET,
     "job.yaml:1:15: 'data.train' has no value; give the path of a file\n"},
    {JOB("data: {train: null}\n"), NO_SET,
     "job.yaml:1:8: 'data.train' has no value; give the path of a file\n"},
    {JOB("data: {train: x.csv, test: ~}\n"), NO_SET,
     "job.yaml:1:22: 'data.test' has no value; give the path of a file, or remove the key\n"},
    {JOB("data: {train: x.csv}\ntrain: {batch: }\n"), NO_SET,
     "job.yaml:2:9: 'train.batch' has no value; give a whole number from 1 to 2147483647, or "
     "remove the key\n"},
    {JOB("seed: 3\n"), NO_SET,
     "job.yaml: 'data.train' is required but missing: give the path of a file\n"},
    {JOB("seed: 3\ndata:\n  label: x\n"), NO_SET,
     "job.yaml:2:1: 'data.train' is required but missing: give the path of a file\n"},
    /* ---- keys side by side */
    {JOB("data:\n  train: x.csv\n  train: y.csv\n"), NO_SET,
     "job.yaml:3:3: 'data.train' is given twice, first at line 2, column 3; remove one\n"},
    {JOB("data: {train: x.csv}\n"
         "train: {batch: 1}\n"
         "seed: 1\n"
         "train: {batch: 2}\n"),
     NO_SET, "job.yaml:4:1: 'train' is given twice, first at line 2, column 1; remove one\n"},
    {JOB("data: {train: x.csv}\n"
         "train:\n"
         "  epochs: 3\n"
         "  steps: 5\n"),
     NO_SET,
     "job.yaml:4:3: 'train.steps' conflicts with 'train.epochs' (line 3, column 3); remove one of "
     "them\n"},
    {JOB("data: {train: x.csv}\n"
         "train:\n"
         "  steps: 5\n"
         "  epochs: 3\n"),
     NO_SET,
     "job.yaml:4:3: 'train.epochs' conflicts with 'train.steps' (line 3, column 3); remove one of "
     "them\n"},
    {JOB("data:\n"
         "  train: x.csv\n"
         "  test: y.csv\n"
         "  test_fraction: 0.1\n"),
     NO_SET,
     "job.yaml:4:3: 'data.test_fraction' conflicts with 'data.test' (line 3, column 3); remove one "
     "of them\n"},
    {JOB("data:\n"
         "  train: x.csv\n"
         "  train_labels: l\n"
         "  test_labels: y\n"),
     NO_SET, "job.yaml:4:3: 'data.test_labels' requires 'data.test'; add it, or remove this key\n"},
    {JOB("data: {train: x, train_labels: y, format: csv}\n"), NO_SET,
     "job.yaml:1:18: 'data.train_labels' is for IDX files; a CSV file has its labels in the column "
     "'data.label': remove this key, or set 'data.format' to idx\n"},
    {JOB("data: {train: x, test: z, test_labels: y, format: csv}\n"), NO_SET,
     "job.yaml:1:27: 'data.test_labels' is for IDX files; a CSV file has its labels in the column "
     "'data.label': remove this key, or set 'data.format' to idx\n"},
    {JOB("data: {train: x, format: idx}\n"), NO_SET,
     "job.yaml:1:18: IDX images have no labels; set 'data.train_labels' to the file of labels\n"},
    {JOB("data: {train: x, train_labels: y, test: z}\n"), NO_SET,
     "job.yaml:1:35: 'data.train' has a file of labels, so 'data.test' needs one as well: set "
     "'data.test_labels'\n"},
    {JOB("data: {train: x, test: z, test_labels: y}\n"), NO_SET,
     "job.yaml:1:27: 'data.test' has a file of labels, so 'data.train' needs one as well: set "
     "'data.train_labels'\n"},
    {JOB("data: {train: x.txt, format: text}\n"), NO_SET,
     "job.yaml:1:22: the format text is for models that predict the next token: set 'model.kind' "
     "to gpt, or start 'layers' with embedding, or set 'data.format' to csv or idx\n"},
    {JOB("data: {train: x, format: libsvm}\n"), NO_SET,
     "job.yaml:1:18: the formats libsvm and criteo have sparse samples: set 'model.kind' to "
     "lr, fm, wide_deep or dlrm, or convert the file to CSV and set 'data.format' to csv\n"},
    {JOB("data: {train: x, format: criteo}\nmodel: {kind: gpt}\n"), NO_SET,
     "job.yaml:1:18: the formats libsvm and criteo have sparse samples: set 'model.kind' to "
     "lr, fm, wide_deep or dlrm, or convert the file to CSV and set 'data.format' to csv\n"},
    {JOB("data: {train: x.csv}\nmodel: {kind: lr}\n"), NO_SET,
     "job.yaml:2:9: the models lr, fm, wide_deep and dlrm are trained on sparse samples: set "
     "'data.format' to libsvm or criteo\n"},
    {JOB("data: {train: x, format: libsvm}\nmodel: {kind: dlrm}\n"), NO_SET,
     "job.yaml:2:9: dlrm needs samples with several fields, but those of libsvm have one: choose fm "
     "or wide_deep, or set 'data.format' to criteo\n"},
    {JOB("data: {train: x, format: libsvm}\nmodel: {kind: fm}\nsync: {kind: local}\n"), NO_SET,
     "job.yaml:2:9: a sparse table is updated once in each step, so it cannot be used with replicas "
     "('sync.kind: local', the modes async and stale of 'sync.kind: server', and 'compress'); "
     "remove these keys\n"},
    {JOB("data: {train: x, format: libsvm}\nmodel: {kind: fm}\noptim: {ema: 0.9}\n"), NO_SET,
     "job.yaml:3:9: the rows of a sparse table have no moving average; remove 'optim.ema'\n"},
    {JOB("data: {train: x, format: libsvm, shape: [2]}\nmodel: {kind: lr}\n"), NO_SET,
     "job.yaml:1:34: sparse samples have no shape; remove 'data.shape'\n"},
    {JOB("data: {train: x, format: libsvm, normalise: standard}\nmodel: {kind: lr}\n"), NO_SET,
     "job.yaml:1:34: values of sparse samples are not normalised (integers of criteo become log(1 + "
     "n)); set 'data.normalise' to none\n"},
    {JOB("data: {train: x, format: libsvm}\nmodel: {kind: lr, init_from: y}\n"), NO_SET,
     "job.yaml:2:19: a file in 'model.init_from' has no rows for a sparse table; remove this key\n"},
    {JOB("data: {train: x, format: libsvm}\nmodel: {kind: lr}\nparallel: {offload: y}\n"), NO_SET,
     "job.yaml:3:12: the rows of a sparse table are kept in memory; remove 'parallel.offload'\n"},
    {JOB("data: {train: x, format: libsvm}\nmodel: {kind: lr}\ntable: {dim: 0, lr: 0, hash_bits: 64}\n"),
     NO_SET,
     "job.yaml:3:14: 'table.dim' expects a whole number from 1 to 1024, got '0'\n"
     "job.yaml:3:21: 'table.lr' expects a number above 0, got '0'\n"
     "job.yaml:3:35: 'table.hash_bits' expects a whole number from 1 to 63, got '64'\n"},
    {JOB("data: {train: x.csv, format: csv}\nmodel: {kind: gpt}\n"), NO_SET,
     "job.yaml:1:22: a token model (gpt, or layers that start with embedding) is trained on a "
     "text: set 'data.format' to text, or remove it\n"},
    {JOB("data: {train: x, train_labels: y}\nmodel: {kind: gpt}\n"), NO_SET,
     "job.yaml:1:18: a token model has no labels: it predicts each character from the previous "
     "ones; remove this key\n"},
    {JOB("data: {train: x.txt}\nmodel: {kind: gpt, width: 30}\n"), NO_SET,
     "job.yaml:2:20: 'model.width' must be a multiple of 'model.heads'\n"},
    {JOB("data: {train: x.csv}\nmodel: {preset: gpt2}\n"), NO_SET,
     "job.yaml:2:9: 'model.preset' is for gpt; set 'model.kind' to gpt, or remove this key\n"},
    {JOB("data: {train: x.csv}\nmodel: {kind: library}\n"), NO_SET,
     "job.yaml:2:9: the model library requires 'model.library', the shared object with the model\n"},
    {JOB("data: {train: x.csv}\nmodel: {library: m.so}\n"), NO_SET,
     "job.yaml:2:9: 'model.library' is for models from a library: set 'model.kind' to library, or "
     "remove this key\n"},
    {JOB("data: {train: x.csv}\nmodel: {options: {width: 1}}\n"), NO_SET,
     "job.yaml:2:9: 'model.options' is for models from a library: set 'model.kind' to library, or "
     "remove this key\n"},
    {JOB("data: {train: x.csv}\nmodel: {kind: library, library: m.so, library_sha256: 12ab}\n"),
     NO_SET, "job.yaml:2:55: 'model.library_sha256' expects 64 hexadecimal digits, got '12ab'\n"},
    {JOB("data: {train: x.csv}\nmodel: {kind: library, library: m.so, options: 7}\n"), NO_SET,
     "job.yaml:2:48: 'model.options' expects a mapping of at most 64 names to values, such as "
     "{width: 64}, got '7'\n"},
    {JOB("data: {train: x.csv}\nmodel: {kind: library, library: m.so, options: {a: [1], b: , c d: "
         "2}}\n"),
     NO_SET,
     "job.yaml:2:52: 'model.options.a' expects a single value, such as 64 or relu, got a list\n"
     "job.yaml:2:57: 'model.options.b' has no value; give one, or leave it out\n"
     "job.yaml:2:62: 'model.options': 'c d' is not a valid option name; use 1 to 64 letters, "
     "digits, '.', '_' or '-', not beginning with '.' or '-'\n"},
    {JOB("data: {train: x.csv}\nmodel: {kind: library, library: m.so, options: {a: 1, a: 2}}\n"),
     NO_SET,
     "job.yaml:2:55: 'model.options.a' is given twice, first at line 2, column 49; remove one\n"},
    {JOB("data: {train: x.csv}\nmodel: {kind: library, library: m.so}\n"),
     SET("model.options.a=", "model.options.b c=1"),
     "--set: 'model.options.a' has no value; give one, or leave it out\n"
     "--set: 'model.options': 'b c' is not a valid option name; use 1 to 64 letters, digits, '.', "
     "'_' or '-', not beginning with '.' or '-'\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: local, replicas: 8}\nparallel: {lanes: 4}\n"), NO_SET,
     "job.yaml:2:21: 'sync.replicas' exceeds 'parallel.lanes', but each replica needs a lane; reduce "
     "it, or increase 'parallel.lanes'\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: local}\nparallel: {zero: 2}\n"), NO_SET,
     "job.yaml:2:8: 'sync.kind: local' needs the whole model on each host; set 'parallel.zero' to 0 "
     "or 1\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: local, replicas: 3}\noptim: {ema: 0.9}\n"), NO_SET,
     "job.yaml:2:31: 'sync.replicas' expects a power of two from 1 to 65536, or the word auto, got "
     "'3'\n"
     "job.yaml:3:9: 'optim.ema' averages the weights after every step, but with 'sync.kind: local' "
     "and 'gossip' the model changes once per period; remove 'optim.ema'\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: local, adapt_divergence: .1, adapt_lr: .1, replicas: 1}\n"),
     NO_SET,
     "job.yaml:2:21: the period can follow 'sync.adapt_divergence' or 'sync.adapt_lr', not both; "
     "remove one\n"
     "job.yaml:2:21: 'sync.adapt_divergence' needs at least two replicas; increase "
     "'sync.replicas'\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: local, adapt_divergence: .1}\n"
         "compress: {quantise: int8}\n"),
     NO_SET,
     "job.yaml:2:21: 'sync.adapt_divergence' compares the replicas with their mean, which 'compress' "
     "changes; remove one of the two\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: local, adapt_divergence: 2}\n"), NO_SET,
     "job.yaml:2:39: 'sync.adapt_divergence' expects a number from 0 to 1, got '2'\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: gossip, replicas: 1}\nparallel: {zero: 1}\n"), NO_SET,
     "job.yaml:2:8: 'sync.kind: gossip' has no state in common that hosts could shard: each replica "
     "has its own; set 'parallel.zero' to 0\n"
     "job.yaml:2:22: 'sync.kind: gossip' needs at least two replicas; increase 'sync.replicas'\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: gossip}\ncompress: {quantise: int8}\n"), NO_SET,
     "job.yaml:2:8: 'compress' encodes what is added over all replicas, but with 'sync.kind: gossip' "
     "replicas send their models to neighbours; remove 'compress', or use 'sync.kind: local'\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: gossip, replicas: 8, degree: 4}\n"), NO_SET,
     "job.yaml:2:35: 'sync.degree' exceeds the number of other replicas (with 'sync.graph: "
     "exponential', of those at a distance of 1, 2, 4, ...); reduce it, or increase "
     "'sync.replicas'\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: gossip, graph: random, replicas: 4, degree: 4}\n"),
     NO_SET,
     "job.yaml:2:50: 'sync.degree' exceeds the number of other replicas (with 'sync.graph: "
     "exponential', of those at a distance of 1, 2, 4, ...); reduce it, or increase "
     "'sync.replicas'\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: gossip}\noptim: {ema: 0.9}\n"), NO_SET,
     "job.yaml:3:9: 'optim.ema' averages the weights after every step, but with 'sync.kind: local' "
     "and 'gossip' the model changes once per period; remove 'optim.ema'\n"},
    {JOB("data: {train: x.csv}\ncompress: {sparsify: topk, ratio: 0}\n"), NO_SET,
     "job.yaml:2:35: 'compress.ratio' expects a number above 0 and at most 1, got '0'\n"},
    {JOB("data: {train: x.csv}\ncompress: {sparsify: topk}\nparallel: {zero: 3}\n"), NO_SET,
     "job.yaml:2:12: 'compress' needs whole gradients; set 'parallel.zero' to 0 or 1\n"},
    {JOB("data: {train: x.csv}\ncompress: {quantise: int8, momentum: 0.5}\n"), NO_SET,
     "job.yaml:2:28: 'compress.momentum' accumulates elements that are not sent; set "
     "'compress.sparsify', or remove this key\n"},
    {JOB("data: {train: x.csv}\ncompress: {auto: true, quantise: int8}\n"), NO_SET,
     "job.yaml:2:12: 'compress.auto' chooses a method, but the job sets one; remove it, or "
     "'compress.sparsify', 'compress.quantise' and 'compress.rank'\n"},
    {JOB("data: {train: x.csv}\ncompress: {auto: true, feedback: no}\n"), NO_SET,
     "job.yaml:2:24: 'compress.auto' chooses among methods with error feedback; set "
     "'compress.feedback' to true\n"},
    {JOB("data: {train: x.csv}\ncompress: {auto: true}\nsync: {kind: server, mode: async}\n"),
     NO_SET,
     "job.yaml:2:12: 'compress.auto' compares with an all_reduce, which 'sync.kind: server' does "
     "not make; set 'compress.sparsify' or 'compress.quantise'\n"},
    {JOB("data: {train: x.csv}\ncompress: {rank: 4, quantise: int8}\n"), NO_SET,
     "job.yaml:2:12: 'compress.rank' (PowerSGD) sends sums of factors, which cannot be sparse or "
     "quantised; remove it, or 'compress.sparsify' and 'compress.quantise'\n"},
    {JOB("data: {train: x.csv}\ncompress: {rank: 4, momentum: 0.9}\noptim: {momentum: 0}\n"),
     NO_SET,
     "job.yaml:2:21: 'compress.momentum' accumulates elements that are not sent; set "
     "'compress.sparsify', or remove this key\n"},
    {JOB("data: {train: x.csv}\ncompress: {rank: 4, feedback: no}\n"), NO_SET,
     "job.yaml:2:21: 'compress.rank' (PowerSGD) without error feedback would never send most "
     "directions of a gradient; set 'compress.feedback' to true\n"},
    {JOB("data: {train: x.csv}\ncompress: {rank: 4}\nsync: {kind: server, mode: async}\n"), NO_SET,
     "job.yaml:2:12: 'compress.rank' (PowerSGD) adds the gradients of all replicas, but "
     "'sync.kind: server' applies them one by one; use 'compress.sparsify' or "
     "'compress.quantise'\n"},
    {JOB("data: {train: x.csv}\ncompress: {rank: 4, min_rate: 0.5}\n"), NO_SET,
     "job.yaml:2:31: 'compress.min_rate' expects a number of at least 1, got '0.5'\n"},
    {JOB("data: {train: x.csv}\ncompress: {rank: 300}\nparallel: {zero: 2}\n"), NO_SET,
     "job.yaml:2:18: 'compress.rank' expects a whole number from 0 to 256, got '300'\n"},
    {JOB("data: {train: x.csv}\ncompress: {rank: 2}\nparallel: {zero: 2}\n"), NO_SET,
     "job.yaml:2:12: 'compress' needs whole gradients; set 'parallel.zero' to 0 or 1\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: server, mode: async, replicas: 128}\n"), NO_SET,
     "job.yaml:2:35: 'sync.kind: server' has at most 64 replicas; reduce 'sync.replicas'\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: server, mode: async, replicas: 4, speeds: [1, 2]}\n"),
     NO_SET, "job.yaml:2:48: 'sync.speeds' needs one number for each of the 'sync.replicas'\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: server, mode: async}\nparallel: {zero: 2}\n"), NO_SET,
     "job.yaml:2:8: 'sync.kind: server' updates whole gradients in the memory of each host; set "
     "'parallel.zero' to 0 or 1\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: server, mode: async, order: live}\n"
         "checkpoint: {ledger: true}\n"),
     NO_SET,
     "job.yaml:3:14: 'checkpoint.ledger' proves that batches are trained in order, but with "
     "'sync.order: live' they are trained as they are complete; order.jsonl names the batch of each "
     "update: set 'checkpoint.ledger' to false\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: server, mode: async, order: live}\n"
         "compress: {quantise: int8}\n"),
     NO_SET,
     "job.yaml:2:35: 'sync.order: live' does not compress gradients; remove 'compress', or set "
     "'sync.order' to virtual\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: server, mode: async, order: live}\n"
         "parallel: {balance: feedback}\n"),
     NO_SET,
     "job.yaml:3:12: with 'sync.order: live' a slow rank delays no other one, and its replicas are "
     "not moved; set 'parallel.balance' to off or weights\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: server, mode: async, order: recorded}\n"), NO_SET,
     "job.yaml:2:35: 'sync.order: recorded' requires 'sync.order_from', the run whose order of "
     "updates is repeated\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: server, mode: async, order_from: x.csv}\n"), NO_SET,
     "job.yaml:2:35: 'sync.order_from' is for 'sync.order: recorded'; set that, or remove this "
     "key\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: local, staleness: 2}\n"), NO_SET,
     "job.yaml:2:21: 'sync.staleness' is the bound of 'sync.kind: server' with 'sync.mode: stale'; "
     "set these two, or remove this key\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: server, mode: async, staleness: 2}\n"), NO_SET,
     "job.yaml:2:35: 'sync.staleness' is the bound of 'sync.kind: server' with 'sync.mode: stale'; "
     "set these two, or remove this key\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: local, adapt_lr: 1, max_period: 4}\n"), NO_SET,
     "job.yaml:2:34: 'sync.max_period' is less than 'sync.period'; increase it\n"},
    {JOB("data: {train: x.csv}\ncompress: {sparsify: threshold, threshold: 1e-40}\n"), NO_SET,
     "job.yaml:2:44: 'compress.threshold' expects a number from 1e-37 to 1e+38, got '1e-40'\n"},
    {JOB("data: {train: x.csv}\nsync: {kind: server, mode: stale}\noptim: {kind: lamb}\n"), NO_SET,
     "job.yaml:3:9: lamb needs the norms of whole tensors after each update, which 'sync.kind: "
     "server' does not compute; choose another optimiser\n"},
    {JOB("data: {train: x.csv}\noptim: {nesterov: true}\n"), NO_SET,
     "job.yaml:2:9: 'optim.nesterov' is for sgd; set 'optim.kind' to sgd, or remove this key\n"},
    {JOB("data: {train: x.csv}\noptim: {nesterov: true, kind: sgd, momentum: 0}\n"), NO_SET,
     "job.yaml:2:9: 'optim.nesterov' requires momentum; set 'optim.momentum' above 0\n"},
    {JOB("data: {train: x.csv}\ntrain: {batch: 4}\nparallel: {lanes: 8}\n"), NO_SET,
     "job.yaml:3:12: 'parallel.lanes' exceeds 'train.batch', so some lanes would have no samples; "
     "reduce it, or increase 'train.batch'\n"},
    /* ---- YAML itself */
    {JOB("data: {train: x.csv}\ntrain: &a {batch: 3}\n"), NO_SET,
     "job.yaml:2:8: anchors ('&a') are not supported; write the value out where it is used\n"},
    {JOB("data: {train: x.csv}\ntrain: {batch: &b 3}\neval: {batch: *b}\n"), NO_SET,
     "job.yaml:2:16: anchors ('&b') are not supported; write the value out where it is used\n"
     "job.yaml:3:15: aliases ('*b') are not supported; write the value out\n"},
    {JOB("data: {train: x.csv}\n&k seed: 3\n"), NO_SET,
     "job.yaml:2:1: anchors ('&k') are not supported; write the value out where it is used\n"},
    {JOB("data: {train: x.csv}\nseed: !!int 3\n"), NO_SET,
     "job.yaml:2:7: tags ('!!int') are not supported; remove the tag\n"},
    {JOB("data: {train: x.csv}\nseed: !mine 3\n"), NO_SET,
     "job.yaml:2:7: tags ('!mine') are not supported; remove the tag\n"},
    {JOB("data: {train: x.csv}\ntrain:\n  <<: {batch: 3}\n"), NO_SET,
     "job.yaml:3:3: merge keys ('<<') are not supported; write the keys out\n"},
    {JOB("data: {train: x.csv}\n? [a, b]\n: 1\n"), NO_SET,
     "job.yaml:2:3: a key must be a word, not a list\n"},
    {JOB("data: {train: x.csv}\n{a: b}: 1\n"), NO_SET,
     "job.yaml:2:1: a key must be a word, not a mapping\n"},
    {JOB("data: {train: x.csv}\n---\nseed: 3\n"), NO_SET,
     "job.yaml:2:1: a second document begins here; a job is one document: remove the '---' and "
     "everything after it\n"},
    {JOB("data: {train: x.csv}\ntrain:\n\tbatch: 3\n"), NO_SET,
     "job.yaml:3:1: not valid YAML: there is a tab; indent with spaces instead\n"},
    {JOB("data: {train: x.csv}\ntrain: {batch: 3\n"), NO_SET,
     "job.yaml:3:1: not valid YAML: did not find expected ',' or '}' while parsing a flow "
     "mapping that began at line 2\n"},
    {JOB("data: {train: x.csv}\n"
         "train:\n"
         "  batch: 3\n"
         " seed: 1\n"),
     NO_SET,
     "job.yaml:4:2: not valid YAML: did not find expected key while parsing a block mapping "
     "that began at line 1\n"},
    {JOB("data: {train: x.csv}\nname: \"open\n"), NO_SET,
     "job.yaml:3:1: not valid YAML: found unexpected end of stream while scanning a quoted "
     "scalar that began at line 2\n"},
    {JOB("data: {train: x.csv, delimiter: ,}\n"), NO_SET,
     "job.yaml:1:22: 'data.delimiter' has no value; give one ASCII character, or the word tab, or "
     "remove the key\n"},
    {JOB("data:\n  train: x.csv\n  delimiter: ,\n"), NO_SET,
     "job.yaml:3:14: not valid YAML: unexpected ','; quote a value that begins with it\n"},
    {JOB("data: {train: x.csv}\nseed: @3\n"), NO_SET,
     "job.yaml:2:7: not valid YAML: unexpected '@'; quote a value that begins with it\n"},
    {JOB("data: {train: x.csv}\na: [[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]\n"), NO_SET,
     "job.yaml:2:23: nested deeper than 20 levels; flatten the file\n"},
    {JOB("data: {train: x.csv}\nname: \377\n"), NO_SET,
     "job.yaml:2:7: the byte 0xff does not begin a printable UTF-8 character; save the file as "
     "UTF-8\n"},
    {JOB("data: {train: x.csv}\nname: a\300\200\n"), NO_SET,
     "job.yaml:2:8: the byte 0xc0 does not begin a printable UTF-8 character; save the file as "
     "UTF-8\n"},
    {JOB("data: {train: x.csv}\nnam\000e: a\n"), NO_SET,
     "job.yaml:2:4: the control character 0x00 is not allowed; remove it\n"},
    {JOB("data: {train: x.csv}\n# \303\251\303\251 \355\240\200\n"), NO_SET,
     "job.yaml:2:6: the byte 0xed does not begin a printable UTF-8 character; save the file as "
     "UTF-8\n"},
    {JOB("\357\273\277data: {train: x.csv}\r\nseed: x\r\n"), NO_SET,
     "job.yaml:2:7: 'seed' expects a whole number, got 'x'\n"},
    /* ---- everything at once */
    {JOB("train:\n"
         "  batch: abc\n"
         "  epoch: 3\n"
         "seed: -1\n"
         "optim: {kind: adm}\n"),
     SET("eval.bach=3", "train.batch"),
     "job.yaml:2:10: 'train.batch' expects a whole number, got 'abc'\n"
     "job.yaml:3:3: unknown key 'train.epoch'; did you mean 'train.epochs'?\n"
     "job.yaml:4:7: 'seed' expects a whole number from 0 to 2^53, got '-1'\n"
     "job.yaml:5:15: 'optim.kind' expects sgd, adagrad, rmsprop, adam, adamw, lamb or lion, got "
     "'adm'; did you mean 'adam'?\n"
     "job.yaml: 'data.train' is required but missing: give the path of a file\n"
     "--set: unknown key 'eval.bach'; did you mean 'eval.batch'?\n"
     "--set: an override is written key=value, such as train.batch=64; got 'train.batch'\n"},
    /* ---- overrides */
    {JOB("data: {train: x.csv}\n"), SET("trian.batch=3"),
     "--set: unknown key 'trian.batch'; did you mean 'train.batch'?\n"},
    {JOB("data: {train: x.csv}\n"), SET("evl.batch=3"),
     "--set: unknown key 'evl.batch'; did you mean 'eval.batch'?\n"},
    {JOB("data: {train: x.csv}\n"), SET("train=3"),
     "--set: 'train' is a group of keys; set one of them, such as 'train.batch'\n"},
    {JOB("data: {train: x.csv}\n"), SET("train.batch"),
     "--set: an override is written key=value, such as train.batch=64; got 'train.batch'\n"},
    {JOB("data: {train: x.csv}\n"), SET("=3"),
     "--set: an override is written key=value, such as train.batch=64; got '=3'\n"},
    {JOB("data: {train: x.csv}\n"), SET(""),
     "--set: an override is written key=value, such as train.batch=64; got ''\n"},
    {JOB("data: {train: x.csv}\n"), SET("train.batch=abc"),
     "--set: 'train.batch' expects a whole number, got 'abc'\n"},
    {JOB("data: {train: x.csv}\n"), SET("train.batch="),
     "--set: 'train.batch' has no value; give a whole number from 1 to 2147483647, or remove the "
     "key\n"},
    {JOB("data: {train: x.csv}\n"), SET("data.train="),
     "--set: 'data.train' has no value; give the path of a file\n"},
    {JOB("data: {train: x.csv}\n"), SET("model.hidden=64"),
     "--set: 'model.hidden' expects a list of whole numbers, such as [128, 64], got '64'\n"},
    {JOB("data: {train: x.csv}\n"), SET("model.hidden=[64,x]"),
     "--set: 'model.hidden' expects a whole number, got 'x'\n"},
    {JOB("data: {train: x.csv}\n"), SET("model.hidden=[64"),
     "--set: 'model.hidden': cannot read '[64': not valid YAML: did not find expected ',' or "
     "']' while parsing a flow sequence that began at line 1\n"},
    {JOB("data: {train: x.csv}\n"), SET("model.hidden="),
     "--set: 'model.hidden' has no value; give a list of at most 64 whole numbers from 1 to "
     "1048576, or remove the key\n"},
    {JOB("data: {train: x.csv}\n"), SET("name='a' b"),
     "--set: 'name': cannot read ''a' b': not valid YAML: did not find expected <document "
     "start>\n"},
    {JOB("data: {train: x.csv}\n"), SET("data.label=a\377"),
     "--set: an override contains bytes that are not printable UTF-8\n"},
    {JOB("data: {train: x.csv}\n"), SET("model.hidden=[1] # c\n--- 3"),
     "--set: 'model.hidden': cannot read '[1] # c?--- 3': a second document begins here; a job is "
     "one document: remove the '---' and everything after it\n"},
    {JOB("data: {train: x.csv}\n"), SET("train.batch=x", "train.batch=y"),
     "--set: 'train.batch' expects a whole number, got 'y'\n"},
    {JOB("seed: [\n"), SET("train.batch=y"),
     "job.yaml:2:1: not valid YAML: did not find expected node content while parsing a flow "
     "node\n"
     "--set: 'train.batch' expects a whole number, got 'y'\n"},
    {JOB("data: {train: x.csv}\n"), SET("learning_rate=3"),
     "--set: unknown key 'learning_rate'; did you mean 'optim.lr'?\n"},
    {JOB("data: {train: x.csv}\n"), SET("optim.nesterov=yes"),
     "--set: 'optim.nesterov' is for sgd; set 'optim.kind' to sgd, or remove this key\n"},
    {JOB("data: {train: x.csv}\n"), SET("train.batch=4", "parallel.lanes=8"),
     "--set: 'parallel.lanes' exceeds 'train.batch', so some lanes would have no samples; reduce "
     "it, or increase 'train.batch'\n"},
    {JOB("data: {train: x.csv, test: y.csv, test_labels: l}\n"),
     SET("data.train_labels=t", "data.test_labels=", "data.format=idx"),
     "job.yaml:1:22: 'data.train' has a file of labels, so 'data.test' needs one as well: set "
     "'data.test_labels'\n"},
    /* ---- optimisers and schedules */
    {JOB("data: {train: x.csv}\noptim: {alpha: 1, clip_norm: -1, clip_value: x, ema: 1}\n"), NO_SET,
     "job.yaml:2:16: 'optim.alpha' expects a number from 0 to below 1, got '1'\n"
     "job.yaml:2:30: 'optim.clip_norm' expects a number of at least 0, got '-1'\n"
     "job.yaml:2:46: 'optim.clip_value' expects a number, got 'x'\n"
     "job.yaml:2:54: 'optim.ema' expects a number from 0 to below 1, got '1'\n"},
    {JOB("data: {train: x.csv}\noptim: {centred: true}\n"), NO_SET,
     "job.yaml:2:9: 'optim.centred' is for rmsprop; set 'optim.kind' to rmsprop, or remove this "
     "key\n"},
    {JOB("data: {train: x.csv}\noptim: {centered: true}\n"), NO_SET,
     "job.yaml:2:9: unknown key 'optim.centered'; did you mean 'optim.centred'?\n"},
    {JOB("data: {train: x.csv}\noptim: {groups: 3}\n"), NO_SET,
     "job.yaml:2:17: 'optim.groups' expects a list of at most 64 mappings with match, lr_scale "
     "and weight_decay, got '3'\n"},
    {JOB("data: {train: x.csv}\noptim: {groups: {match: a}}\n"), NO_SET,
     "job.yaml:2:17: 'optim.groups' expects a list of at most 64 mappings with match, lr_scale "
     "and weight_decay, got a mapping\n"},
    {JOB("data: {train: x.csv}\noptim: {groups: [a, [b], {match: c}, ~]}\n"), NO_SET,
     "job.yaml:2:18: 'optim.groups': each entry is a mapping, such as {match: ...}, got 'a'\n"
     "job.yaml:2:21: 'optim.groups': each entry is a mapping, such as {match: ...}, got a list\n"
     "job.yaml:2:38: 'optim.groups': each entry is a mapping, such as {match: ...}, got '~'\n"},
    {JOB("data: {train: x.csv}\noptim:\n  groups:\n    - lr_scale: 2\n"), NO_SET,
     "job.yaml:4:7: 'optim.groups.match' is missing; give a text\n"},
    {JOB("data: {train: x.csv}\noptim:\n  groups:\n    - match: \"*.bias\"\n      weight_decai: 0\n    - {match: [a], zebra: 1}\n"),
     NO_SET,
     "job.yaml:5:7: unknown key 'optim.groups.weight_decai'; did you mean "
     "'optim.groups.weight_decay'?\n"
     "job.yaml:6:15: 'optim.groups.match' expects a text, got a list\n"
     "job.yaml:6:20: unknown key 'optim.groups.zebra'; 'optim.groups' takes a list of at most "
     "64 mappings with match, lr_scale and weight_decay\n"},
    {JOB("data: {train: x.csv}\noptim:\n  groups:\n    - {match: a, match: b, lr_scale: -1, weight_decay: \"0\"}\n    - match:\n"),
     NO_SET,
     "job.yaml:4:18: 'optim.groups.match' is given twice, first at line 4, column 8; remove one\n"
     "job.yaml:4:38: 'optim.groups.lr_scale' expects a number of at least 0, got '-1'\n"
     "job.yaml:4:56: 'optim.groups.weight_decay' expects a number, got '0'; remove the quotes\n"
     "job.yaml:5:7: 'optim.groups.match' has no value; give a text\n"},
    {JOB("data: {train: x.csv}\n"), SET("optim.groups=[{match: a, lr_scale: x}]"),
     "--set: 'optim.groups.lr_scale' expects a number, got 'x'\n"},
    {JOB("data: {train: x.csv}\n"), SET("optim.groups={match: a}"),
     "--set: 'optim.groups' expects a list of at most 64 mappings with match, lr_scale and "
     "weight_decay, got '{match: a}'\n"},
    {JOB("data: {train: x.csv}\nschedule: {kind: cosin, warmup: -1, steps: 0, floor: -1, gamma: 0}\n"),
     NO_SET,
     "job.yaml:2:18: 'schedule.kind' expects constant, step, multi_step, exponential, cosine, "
     "linear, one_cycle, inverse_sqrt or reduce_on_plateau, got 'cosin'; did you mean "
     "'cosine'?\n"
     "job.yaml:2:33: 'schedule.warmup' expects a whole number from 0 to 2^53, got '-1'\n"
     "job.yaml:2:44: 'schedule.steps' expects a whole number from 1 to 2^53, or the word auto, "
     "got '0'\n"
     "job.yaml:2:54: 'schedule.floor' expects a number of at least 0, got '-1'\n"
     "job.yaml:2:65: 'schedule.gamma' expects a number above 0, got '0'\n"},
    {JOB("data: {train: x.csv}\nschedule: {kind: step}\n"), NO_SET,
     "job.yaml:2:12: the schedule step requires 'schedule.every_steps', the number of steps "
     "between changes of the learning rate\n"},
    {JOB("data: {train: x.csv}\nschedule: {kind: multi_step}\n"), NO_SET,
     "job.yaml:2:12: the schedule multi_step requires 'schedule.milestones', a list of the steps "
     "at which the learning rate changes\n"},
    {JOB("data: {train: x.csv}\nschedule: {kind: multi_step, milestones: [3, 3]}\n"), NO_SET,
     "job.yaml:2:30: 'schedule.milestones' must be in increasing order\n"},
    {JOB("data: {train: x.csv}\nschedule: {milestones: [0], every_steps: 0}\n"), NO_SET,
     "job.yaml:2:25: 'schedule.milestones' expects whole numbers from 1 to 2^53, got '0'\n"
     "job.yaml:2:42: 'schedule.every_steps' expects a whole number from 1 to 2^53, got '0'\n"},
    {JOB("data: {train: x.csv}\nschedule: {peak_at: 2, start_divisor: .5, end_divisor: 0, anneal: cos, metric: loss, patience: -1, threshold: 1, cooldown: -1}\n"),
     NO_SET,
     "job.yaml:2:21: 'schedule.peak_at' expects a number from 0 to 1, got '2'\n"
     "job.yaml:2:39: 'schedule.start_divisor' expects a number of at least 1, got '.5'\n"
     "job.yaml:2:56: 'schedule.end_divisor' expects a number of at least 1, got '0'\n"
     "job.yaml:2:67: 'schedule.anneal' expects cosine or linear, got 'cos'\n"
     "job.yaml:2:80: 'schedule.metric' expects test_loss or test_accuracy, got 'loss'\n"
     "job.yaml:2:96: 'schedule.patience' expects a whole number from 0 to 2^53, got '-1'\n"
     "job.yaml:2:111: 'schedule.threshold' expects a number from 0 to below 1, got '1'\n"
     "job.yaml:2:124: 'schedule.cooldown' expects a whole number from 0 to 2^53, got '-1'\n"},
    {JOB("data: {train: x.csv}\nschedule: {kind: reduce_on_plateau}\n"), NO_SET,
     "job.yaml:2:12: the schedule reduce_on_plateau requires evaluations on a test set; set "
     "'data.test' or 'data.test_fraction', and 'eval.every_epochs' or 'eval.every_steps' to a "
     "number\n"},
    {JOB("data: {train: x.csv, test_fraction: .2}\nschedule: {kind: reduce_on_plateau, gamma: 1}\neval: {every_epochs: never}\n"),
     NO_SET,
     "job.yaml:2:12: the schedule reduce_on_plateau requires evaluations on a test set; set "
     "'data.test' or 'data.test_fraction', and 'eval.every_epochs' or 'eval.every_steps' to a "
     "number\n"
     "job.yaml:2:37: the schedule reduce_on_plateau reduces the learning rate; set "
     "'schedule.gamma' below 1\n"},
    {JOB("data: {train: x.csv}\nschedule: {warmup_steps: 3}\noptim: {min_lr: 1}\n"), NO_SET,
     "job.yaml:2:12: unknown key 'schedule.warmup_steps'; did you mean 'schedule.warmup'?\n"
     "job.yaml:3:9: unknown key 'optim.min_lr'; did you mean 'schedule.floor'?\n"},
    {JOB("data: {train: x.csv}\nschedule: cosine\n"), NO_SET,
     "job.yaml:2:11: 'schedule' is a group of keys, such as 'schedule.kind'; got 'cosine'\n"},
    {JOB("data: {train: x.csv}\ntrain: {early_stop: {patience: 3}}\n"), NO_SET,
     "job.yaml:2:9: 'train.early_stop' requires evaluations on a test set; set 'data.test' or "
     "'data.test_fraction', and 'eval.every_epochs' or 'eval.every_steps' to a number\n"},
    {JOB("data: {train: x.csv, test_fraction: .2}\ntrain: {early_stop: 3}\n"), NO_SET,
     "job.yaml:2:21: 'train.early_stop' expects a mapping with metric, patience and min_delta, "
     "got '3'\n"},
    {JOB("data: {train: x.csv, test_fraction: .2}\ntrain: {early_stop: [3]}\n"), NO_SET,
     "job.yaml:2:21: 'train.early_stop' expects a mapping with metric, patience and min_delta, "
     "got a list\n"},
    {JOB("data: {train: x.csv, test_fraction: .2}\ntrain: {early_stop: {}}\n"), NO_SET,
     "job.yaml:2:21: 'train.early_stop.patience' is missing; give a whole number from 1 to "
     "2^53\n"},
    {JOB("data: {train: x.csv, test_fraction: .2}\ntrain:\n  early_stop:\n    patience: 0\n    metric: loss\n    min_delta: -1\n    delta: 1\n"),
     NO_SET,
     "job.yaml:4:15: 'train.early_stop.patience' expects a whole number from 1 to 2^53, got '0'\n"
     "job.yaml:5:13: 'train.early_stop.metric' expects test_loss or test_accuracy, got 'loss'\n"
     "job.yaml:6:16: 'train.early_stop.min_delta' expects a number of at least 0, got '-1'\n"
     "job.yaml:7:5: unknown key 'train.early_stop.delta'; did you mean "
     "'train.early_stop.min_delta'?\n"},
    {JOB("data: {train: x.csv, test_fraction: .2}\ntrain:\n  early_stop:\n"), NO_SET,
     "job.yaml:3:3: 'train.early_stop' has no value; give a mapping with metric, patience and "
     "min_delta, or remove the key\n"},
    {JOB("data: {train: x.csv, test_fraction: .2}\n"), SET("train.early_stop={patience: 0}"),
     "--set: 'train.early_stop.patience' expects a whole number from 1 to 2^53, got '0'\n"},
    {JOB("data: {train: x.csv, test_fraction: .2}\n"), SET("train.early_stop.patience=3"),
     "--set: 'train.early_stop.patience' is part of 'train.early_stop', which must be set as a "
     "whole: 'train.early_stop={metric: ...}'\n"},
    {JOB("data: {train: x.csv}\neval: {weights: ema}\n"), NO_SET,
     "job.yaml:2:8: 'eval.weights' is ema, but the job computes no moving average; set 'optim.ema' above "
     "0, such as 0.999\n"},
};
const size_t bad_job_count = sizeof(bad_jobs) / sizeof(bad_jobs[0]);
