/*
 * help.c -- the help screens: 80 columns, an example first where one says more than a list.
 */
#include "cli/cli.h"

#include <string.h>

struct topic {
    const char *command;
    const char *text;
    bool has_recipe; /* the library's table of keys follows */
};

static const char overview[] =
    "snug trains neural networks inside a memory budget, and says where every byte\n"
    "goes before it starts.\n"
    "\n"
    "  snug plan MODEL                  where the bytes go; needs no device, no data\n"
    "  snug fit MODEL --memory SIZE     the fastest recipe that fits; the frontier\n"
    "  snug train MODEL [DATA]          train, in exactly the memory planned\n"
    "  snug eval RUN [DATA]             loss, perplexity or accuracy of a saved run\n"
    "  snug generate RUN --prompt TEXT  sample from a language model\n"
    "  snug inspect FILE|RUN            what is in a checkpoint or a data file\n"
    "  snug data NAME [FOLDER]          download a data set, and check it\n"
    "  snug bench cpu|cuda [MODEL]      what this machine does; a step, op by op\n"
    "  snug ops                         every op: reference, cpu, cuda, gradient\n"
    "  snug help COMMAND                flags and examples of one command\n"
    "  snug help models                 all of them; also optimizers, data-sets\n"
    "  snug --version                   version, libraries, instruction sets\n"
    "\n"
    "Start here:\n"
    "  snug plan gpt2 --batch 8\n"
    "  snug train mlp fashion-mnist --epochs 1 --out run\n"
    "  snug eval run\n"
    "\n"
    "Exit status: 0 done, 1 failed, 2 the command line is wrong, 3 refused before the\n"
    "start: the plan does not fit the budget, or the data has nothing to train on;\n"
    "130 stopped on request without saving. NO_COLOR turns colour off.\n";

static const char model_forms[] =
    "       images: resnet18:3x32x32,classes=10 (else the data decides their size)\n"
    "       sizes: mlp:784-512-512-10, mlp:784-512-10,act=gelu,loss=mse\n"
    "       psi:7.5e9, that many parameters and nothing else (plan only)\n"
    "       a folder with a Hugging Face config.json (and model.safetensors)\n";

static const struct topic topics[] = {
    {"plan",
     "usage: snug plan MODEL [recipe] [--timeline | --compare RECIPES] [--json]\n"
     "       snug plan MODEL [recipe] --each | --quiet | --dump PASS\n"
     "\n"
     "Prints where the bytes of one training step go at its fullest moment. Needs no\n"
     "device, no weights and no data. With --memory, exit status 3 says that the plan\n"
     "does not fit.\n"
     "\n"
     "  snug plan gpt2                        the model's own length, batch 8\n"
     "  snug plan gpt2-xl --batch 8 --precision bf16\n"
     "  snug plan gpt2 --batch 32 --micro-batch 4 --memory 8G\n"
     "  snug plan gpt2-xl --batch 8 --precision bf16 --memory 28G --checkpoint auto\n"
     "  snug plan gpt2 --json | jq .bytes.total\n"
     "  snug plan gpt2 --timeline\n"
     "  snug plan gpt2-xl --ranks 8 --zero 2    the fullest of 8 ranks\n"
     "  snug plan gpt2-xl --ranks 8 --pipeline 1f1b --batch 32 --micro-batch 1 --each\n"
     "  snug plan gpt2 --compare \"; --micro-batch 2; precision=bf16 state-bits=8\"\n"
     "\n"
     "  --timeline      a chart of the bytes alive at each op, by kind; its axis\n"
     "                  counts ops, not time\n"
     "  --compare LIST  plans side by side, of recipes separated by ; each on top of\n"
     "                  the flags given; an empty one is those alone\n"
     "  --each          with --ranks: a line for each of them, not the fullest alone;\n"
     "                  of a pipeline also how long its stages are idle\n"
     "  --json          the plan (its timeline, the compared plans) as JSON\n"
     "  --quiet         the total alone\n"
     "  --dump PASS     the program in text after a pass: model before any, last\n"
     "                  after all; kernels: the kernel and workspace of each op\n",
     true},
    {"fit",
     "usage: snug fit MODEL --memory SIZE [recipe] [--allow KEYS] [--frontier] ...\n"
     "\n"
     "Finds the fastest recipe whose plan, and the runtime beside it, are within the\n"
     "budget, and prints it as a command to paste. It tries micro-batches,\n"
     "checkpointing, the place of the update and offload; flags that are given stay\n"
     "as they are. Exit status 3: nothing fits, and the line names the smallest.\n"
     "\n"
     "  snug fit gpt2 --memory 4G\n"
     "  snug fit gpt2-xl --memory 16G --precision bf16 --allow state-bits,master\n"
     "  snug fit gpt2-xl --memory 80G --precision bf16 --target a100 --frontier\n"
     "\n"
     "  --allow KEYS    keys that change what is learned: state-bits, master, lora, or\n"
     "                  all; changed where nothing else fits or a step gets a\n"
     "                  tenth faster; 4 bits and lora only where nothing fits\n"
     "  --frontier      the whole curve of memory against time, not its middle; takes\n"
     "                  longer\n"
     "  --json          one JSON object: budget, chosen, frontier\n"
     "  --quiet         the command alone\n"
     "\n"
     "Times come from rates that snug bench cpu has measured here, from a table of\n"
     "devices (--target), or else from a generic CPU.\n",
     true},
    {"train",
     "usage: snug train MODEL [DATA] [recipe] [--steps N | --epochs N] [--out DIR]\n"
     "\n"
     "Trains. The memory is allocated once, exactly as planned, before the first step.\n"
     "Ctrl-C, SIGTERM or SIGHUP saves with --out and exits with 0: --resume goes on\n"
     "from there. An evaluation is abandoned, a step is finished. Without --out\n"
     "nothing is saved and the exit status is 130. A second Ctrl-C ends the program at\n"
     "once. One process at a time trains in DIR: a second one is refused. With --out\n"
     "a reader that goes away (| head) does not end the run.\n"
     "\n"
     "  snug train mlp fashion-mnist --epochs 5 --batch 64 --out run\n"
     "  snug train gpt-nano input.txt --steps 500 --batch 12 --lr 1e-3 --out nano\n"
     "  snug train gpt-nano input.txt --steps 1000 --out nano --resume\n"
     "  snug train gpt2 --steps 3 --batch 4 --json        measure, with random data\n"
     "\n"
     "  --steps N         optimizer steps (100 if neither is given)\n"
     "  --epochs N        passes over the data; 0.5 is half of one\n"
     "  --out DIR         where the run is saved; nothing is saved without it\n"
     "  --resume          go on with the run in --out; the recipe is the saved one\n"
     "                    where no flag says otherwise\n"
     "  --resume-weights-only  the same, but the optimizer's state begins anew: for\n"
     "                    another --optimizer, --precision, --master or --state-bits\n"
     "  --eval-every N    steps between looks at held-out data; 0 at the end only,\n"
     "                    -1 never\n"
     "  --eval-batches N  batches per look; 0 all (of text, at most 131,072 tokens)\n"
     "  --save-every N    steps between checkpoints; 0 at the end only\n"
     "  --keep N          the last N checkpoints stay, in DIR/checkpoints/step-000020\n"
     "  --grace N         seconds that a step may take to end after SIGTERM, SIGHUP or\n"
     "                    Ctrl-C (20); one that takes longer is not waited for. Open\n"
     "                    MPI's mpirun kills ranks 1 second after SIGTERM, unless\n"
     "                    given --mca odls_base_sigkill_timeout 30\n"
     "  --json            end with one line of JSON (with \"stopped\": true after\n"
     "                    Ctrl-C); progress goes to standard error\n"
     "  --quiet           no header, no progress; the summary is still printed\n"
     "\n"
     "DATA   random (default), fashion-mnist, cifar-10, a text file or a folder of\n"
     "       text (bytes as tokens: at most 256 tokens, or --tokenizer bytes), token\n"
     "       shards *.bin, a folder of IDX files or of CIFAR-10's binary files. Names\n"
     "       are looked for in $SNUG_DATA and the cache\n"
     "       (~/.cache/snug); snug data NAME downloads one.\n"
     "\n"
     "Recipes from PyTorch: adam and amsgrad couple --weight-decay as it does, adamw\n"
     "does not; adagrad and rmsprop need --opt eps-outside=1. amos is AlgoPerf's but\n"
     "for eta of convolutions and attention, and has no second moment per head\n"
     "(docs/optimizers.md).\n",
     true},
    {"eval",
     "usage: snug eval RUN [DATA] [recipe] [--json]\n"
     "\n"
     "Measures a saved run on held-out data: accuracy of a classifier, perplexity of\n"
     "a language model. Without DATA, on what it was trained with. Text is scored in\n"
     "windows of --seq tokens, all of them; a last one that is not full is left out.\n"
     "\n"
     "  snug eval run\n"
     "  snug eval nano other.txt --batch 8\n"
     "\n"
     "  --json          one JSON object: n, loss, perplexity, a classifier's accuracy\n"
     "\n"
     "Flags of the recipe that matter here: --device, --threads, --batch, --lora-from.\n",
     false},
    {"generate",
     "usage: snug generate RUN --prompt TEXT [--tokens N] [--temperature X] ...\n"
     "\n"
     "Prints the prompt and goes on from it, token by token.\n"
     "\n"
     "  snug generate nano --prompt \"ROMEO:\" --tokens 300\n"
     "  snug generate nano --prompt \"To be\" --temperature 0      always the likeliest\n"
     "\n"
     "  --prompt TEXT       what to go on from (--prompt=--text if it begins with --)\n"
     "  --tokens N          how many to sample (100)\n"
     "  --temperature X     1 as learned, below 1 safer, 0 always the likeliest (1)\n"
     "  --top-k N           sample from the N likeliest; 0 from all (0)\n"
     "  --seed N            the same seed gives the same text (1)\n"
     "  --lora-from DIR     an adapter that is added to the model\n",
     false},
    {"inspect",
     "usage: snug inspect FILE|RUN\n"
     "\n"
     "Prints what is in a run, its metrics.jsonl, a safetensors file or a data file.\n"
     "\n"
     "  snug inspect run\n"
     "  snug inspect run/model.safetensors\n",
     false},
    {"data",
     "usage: snug data NAME [FOLDER] [--from URL]\n"
     "\n"
     "Downloads a data set from its publisher with the program curl and checks it: a\n"
     "file appears under its name when its md5 is the published one. What a broken\n"
     "download left is gone on with, and what is there already is not fetched again.\n"
     "\n"
     "  snug data fashion-mnist\n"
     "  snug data cifar-10 /data/cifar-10\n"
     "\n"
     "NAME    fashion-mnist (30 MB), cifar-10 (170 MB; unpacked, 184 MB more)\n"
     "FOLDER  where its files go; without it, $SNUG_DATA/NAME or the cache\n"
     "        (~/.cache/snug/NAME), where train finds it by its name\n"
     "\n"
     "  --from URL      another server that has the same files; https, or plain http\n"
     "                  on this machine (http://127.0.0.1:8000)\n",
     false},
    {"bench",
     "usage: snug bench cpu|cuda [MODEL] [recipe] [--json]\n"
     "\n"
     "cpu measures what this machine does at best: multiply-adds in registers (FMA),\n"
     "matmuls of tiles where the CPU has them (AMX), memory. Then the kernels of a\n"
     "training step of MODEL (gpt-nano), each alone, and the step itself op by op on\n"
     "random data: time, share, rate, and how much of the time the limit alone would\n"
     "take. Without MODEL it also measures the rates of ops that plan and fit estimate\n"
     "times by, and keeps them in the cache (~/.cache/snug/rates.json), for this CPU\n"
     "and number of threads, unless the machine was busy, which it says.\n"
     "The measurements themselves take some 400 MB beside the\n"
     "step, whatever --memory says.\n"
     "\n"
     "cuda measures the same of an NVIDIA GPU, timed by its own clock.\n"
     "\n"
     "  snug bench cpu\n"
     "  snug bench cpu gpt2 --batch 4 --seq 256 --threads 2\n"
     "\n"
     "  --json          the same as one JSON object\n",
     true},
    {"ops",
     "usage: snug ops\n"
     "\n"
     "Prints every op that a program is made of, and what exists for it: the plain C\n"
     "reference, the fast CPU kernel, the CUDA kernel, the gradient rule.\n",
     false},
};

void help_usage(FILE *to)
{
    fputs("usage: snug COMMAND  one of: plan fit train eval generate inspect bench data ops\n"
          "       snug help      what they do      snug plan gpt2    a first look\n",
          to);
}

static int no_memory(void)
{
    cli_note("%s", snug_status_text(SNUG_NO_MEMORY));
    return CLI_FAILED;
}

/* The presets, and how else a model is named. */
static int print_models(FILE *to)
{
    enum { INDENT = 7, WIDTH = 80 };
    char *list = snug_list("models");
    if (list == NULL)
        return no_memory();
    size_t column = (size_t)fprintf(to, "\nMODEL  a preset:") - 1;
    for (const char *line = list; *line != '\0'; line = strchr(line, '\n') + 1) {
        size_t length = strcspn(line, " ");
        if (column + length + 2 > WIDTH)
            column = (size_t)fprintf(to, "\n%*s", INDENT - 1, "") - 1;
        bool is_last = strchr(line, '\n')[1] == '\0';
        column += (size_t)fprintf(to, " %.*s%s", (int)length, line, is_last ? "\n" : ",");
    }
    snug_free(list);
    fputs(model_forms, to);
    return CLI_DONE;
}

static int print_recipe(FILE *to)
{
    char *table = snug_recipe_help();
    if (table == NULL)
        return no_memory();
    fprintf(to,
            "\nRecipe: flags, or key = value lines in a file given as --recipe FILE. The\n"
            "second line of each says what it takes, the default first.\n\n%s",
            table);
    snug_free(table);
    return CLI_DONE;
}

bool help_has_list(const char *name)
{
    static const char *const lists[] = {"models", "optimizers", "data-sets"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (strcmp(name, lists[i]) == 0)
            return true;
    return false;
}

int help_print(FILE *to, const char *command)
{
    if (command == NULL) {
        fputs(overview, to);
        return CLI_DONE;
    }
    for (size_t i = 0; i < sizeof topics / sizeof topics[0]; i++) {
        if (strcmp(command, topics[i].command) != 0)
            continue;
        fputs(topics[i].text, to);
        if (!topics[i].has_recipe)
            return CLI_DONE;
        return print_models(to) == CLI_DONE ? print_recipe(to) : CLI_FAILED;
    }
    return CLI_FAILED;
}
