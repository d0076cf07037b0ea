/*
 * help.c -- the help screens, at most 80 columns wide.  tools/man.awk turns them into the man page.
 */
#include "cli/cli.h"

#include <string.h>

struct topic {
    const char *command;
    const char *text;
    bool has_recipe; /* followed by the lists of models and recipe keys */
};

static const char overview[] =
    "snug trains neural networks inside a memory budget and shows where every byte\n"
    "goes before the first step.\n"
    "\n"
    "  snug plan MODEL                  where the bytes go; needs no device, no data\n"
    "  snug fit MODEL --memory SIZE     find the fastest recipe that fits the budget\n"
    "  snug train MODEL [DATA]          train in exactly the planned memory\n"
    "  snug eval RUN [DATA]             loss, perplexity or accuracy of a saved run\n"
    "  snug generate RUN --prompt TEXT  sample from a language model\n"
    "  snug inspect FILE|RUN            list the contents of a run or a file\n"
    "  snug data NAME [FOLDER]          download and verify a data set\n"
    "  snug data tokenize FILES         write token shards to train on\n"
    "  snug tokenize TOKENIZER          text to token ids, and back\n"
    "  snug bench cpu|cuda [MODEL]      benchmark this machine and a step, op by op\n"
    "  snug ops                         list all ops and their kernels\n"
    "  snug help COMMAND                flags and examples of one command\n"
    "  snug help models                 list all models; also optimizers, data-sets\n"
    "  snug --version                   version, libraries, instruction sets\n"
    "\n"
    "Start here:\n"
    "  snug plan gpt2 --batch 8\n"
    "  snug train mlp fashion-mnist --epochs 1 --out run\n"
    "  snug eval run\n"
    "\n"
    "Exit status: 0 success, 1 failure, 2 wrong command line, 3 refused before the\n"
    "first step (over the memory budget, not enough disk space for --offload, or not\n"
    "enough data), 130 interrupted without saving. NO_COLOR turns colors off.\n";

static const char model_forms[] =
    "       with an image size: resnet18:3x32x32,classes=10 (default: from the data)\n"
    "       with layer sizes: mlp:784-512-512-10, mlp:784-512-10,act=gelu,loss=mse\n"
    "       psi:7.5e9, a bare number of parameters (plan only)\n"
    "       a folder with a Hugging Face config.json (and model.safetensors)\n";

static const struct topic topics[] = {
    {"plan",
     "usage: snug plan MODEL [recipe] [--timeline | --compare RECIPES] [--json]\n"
     "       snug plan MODEL [recipe] --each | --quiet | --dump PASS\n"
     "\n"
     "Shows where the bytes of one training step go at its memory peak. Needs no\n"
     "device, no weights and no data. With --memory, the exit status is 3 if the plan\n"
     "does not fit.\n"
     "\n"
     "  snug plan gpt2                        full sequence length, batch 8\n"
     "  snug plan gpt2-xl --batch 8 --precision bf16\n"
     "  snug plan gpt2 --batch 32 --micro-batch 4 --memory 8G\n"
     "  snug plan gpt2-xl --batch 8 --precision bf16 --memory 28G --checkpoint auto\n"
     "  snug plan gpt2 --json | jq .bytes.total\n"
     "  snug plan gpt2 --timeline\n"
     "  snug plan gpt2-xl --ranks 8 --zero 2    the rank with the highest peak\n"
     "  snug plan gpt2-xl --ranks 8 --pipeline 1f1b --batch 32 --micro-batch 1 --each\n"
     "  snug plan gpt2 --compare \"; --micro-batch 2; precision=bf16 state-bits=8\"\n"
     "\n"
     "  --timeline      chart the live bytes at each op, by kind; the x axis is the\n"
     "                  op index, not time\n"
     "  --compare LIST  compare recipes side by side; LIST separates them with ';'.\n"
     "                  Each adds to the other flags; an empty one adds nothing\n"
     "  --each          print one line per rank, not only the rank with the highest\n"
     "                  peak; for a pipeline also the idle time of its stages\n"
     "  --json          print the plan, timeline or comparison as JSON\n"
     "  --quiet         print only the total\n"
     "  --dump PASS     print the program after a pass: model is before any pass,\n"
     "                  last after all; kernels prints each op's kernel and workspace\n",
     true},
    {"fit",
     "usage: snug fit MODEL --memory SIZE [recipe] [--allow KEYS] [--frontier] ...\n"
     "\n"
     "Finds the fastest recipe whose plan and runtime memory fit the budget, and\n"
     "prints it as a command to paste. It searches --micro-batch, --checkpoint,\n"
     "--update and --offload, and does not change flags that you give. Exit status 3:\n"
     "nothing fits; the message names the smallest recipe.\n"
     "\n"
     "  snug fit gpt2 --memory 4G\n"
     "  snug fit gpt2-xl --memory 16G --precision bf16 --allow state-bits,master\n"
     "  snug fit gpt2-xl --memory 80G --precision bf16 --target a100 --frontier\n"
     "\n"
     "  --allow KEYS    also search keys that change the training result: state-bits,\n"
     "                  master, lora, lora-base, or all. They are used if nothing else\n"
     "                  fits; 16 or 8 bits of state also if a step is 10% faster\n"
     "  --frontier      print the whole memory/time curve, not only the part near the\n"
     "                  choice; takes longer\n"
     "  --json          print one JSON object: budget, chosen, frontier\n"
     "  --quiet         print only the command\n"
     "\n"
     "Times are estimated from rates that snug bench cpu measured here, from a table\n"
     "of devices (--target), or else for a generic CPU.\n",
     true},
    {"train",
     "usage: snug train MODEL [DATA] [recipe] [--steps N | --epochs N] [--out DIR]\n"
     "\n"
     "Trains a model. All memory is allocated once, exactly as planned, before the\n"
     "first step. On Ctrl-C, SIGTERM or SIGHUP snug finishes the current step (it\n"
     "cancels an evaluation), saves to --out and exits with status 0; --resume\n"
     "continues. Without --out nothing is saved and the exit status is 130. A second\n"
     "Ctrl-C exits at once. Only one process can train in DIR at a time. With --out,\n"
     "closing the output (| head) does not stop the run.\n"
     "\n"
     "  snug train mlp fashion-mnist --epochs 5 --batch 64 --out run\n"
     "  snug train lm-nano input.txt --steps 500 --batch 12 --lr 3e-3 --out nano\n"
     "  snug train lm-nano input.txt --steps 1000 --out nano --resume\n"
     "  snug train gpt2 --steps 3 --batch 4 --json        measure on random data\n"
     "\n"
     "  --steps N         number of optimizer steps (100 without --epochs)\n"
     "  --epochs N        number of passes over the data, such as 0.5\n"
     "  --out DIR         save the run in this folder; nothing is saved without it\n"
     "  --resume          continue the run in --out with its saved recipe; flags that\n"
     "                    you give override it\n"
     "  --resume-weights-only  the same with a new optimizer state, to change\n"
     "                    --optimizer, --precision, --master or --state-bits\n"
     "  --eval-every N    evaluate on held-out data every N steps (0: only at the end,\n"
     "                    the default; -1: never)\n"
     "  --eval-batches N  batches per evaluation (0: all held-out data, but at most\n"
     "                    131,072 tokens of text; the default)\n"
     "  --save-every N    save a checkpoint every N steps (0: only at the end, the\n"
     "                    default)\n"
     "  --keep N          keep the last N checkpoints, each in a folder such as\n"
     "                    DIR/checkpoints/step-000020\n"
     "  --grace N         seconds to wait for the current step after SIGTERM, SIGHUP\n"
     "                    or Ctrl-C (20); after that, snug exits without saving.\n"
     "                    Open MPI's mpirun kills ranks 1 second after SIGTERM unless\n"
     "                    started with --mca odls_base_sigkill_timeout 30\n"
     "  --json            end with one line of JSON (with \"stopped\": true after\n"
     "                    Ctrl-C); progress goes to standard error\n"
     "  --quiet           no header, no progress; the summary is still printed\n"
     "\n"
     "DATA   random (default), fashion-mnist, cifar-10, a text file, a folder of text\n"
     "       files, token shards *.bin, a folder of IDX files or of CIFAR-10's binary\n"
     "       files. Text is tokenized with the tokenizer in the model's folder, or\n"
     "       with --tokenizer FOLDER; without one, each byte is a token if the\n"
     "       vocabulary has at most 256. Named data sets are looked up in $SNUG_DATA,\n"
     "       then in ~/.cache/snug; snug data NAME downloads one.\n"
     "\n"
     "Coming from PyTorch: as there, --weight-decay is coupled for adam and amsgrad\n"
     "and decoupled for adamw; adagrad and rmsprop need --opt eps-outside=1. amos\n"
     "differs from the AlgoPerf submission: it has another eta for convolutions and\n"
     "attention, and one second moment per tensor, not one per head\n"
     "(docs/optimizers.md).\n",
     true},
    {"eval",
     "usage: snug eval RUN [DATA] [recipe] [--json]\n"
     "\n"
     "Evaluates a saved run: accuracy for a classifier, perplexity for a language\n"
     "model. The default DATA is what was held out of the data set of the run. Other\n"
     "text is evaluated as a whole, and so are other shards, unless a file is named\n"
     "*val*: then only such files. Windows have --seq tokens; an incomplete last one\n"
     "is dropped.\n"
     "\n"
     "  snug eval run\n"
     "  snug eval nano other.txt --batch 8\n"
     "\n"
     "  --json          print one JSON object: n, loss, perplexity, and for a\n"
     "                  classifier accuracy\n"
     "\n"
     "Useful recipe flags: --device, --threads, --batch, --lora-from.\n",
     false},
    {"generate",
     "usage: snug generate RUN --prompt TEXT [--tokens N] [--temperature X] ...\n"
     "\n"
     "Prints the prompt and continues it, token by token, up to a token that ends a\n"
     "text: eos_token_id of generation_config.json or config.json, or <|endoftext|>\n"
     "and the like. The prompt is tokenized with the tokenizer in RUN, and begins with\n"
     "the token that it puts before a text; without one, each byte is a token.\n"
     "\n"
     "  snug generate nano --prompt \"ROMEO:\" --tokens 300\n"
     "  snug generate nano --prompt \"To be\" --temperature 0      greedy decoding\n"
     "\n"
     "  --prompt TEXT       text to continue (--prompt=--text if it begins with --)\n"
     "  --tokens N          number of tokens to sample (100)\n"
     "  --temperature X     sampling temperature; 0 takes the likeliest token (1)\n"
     "  --top-k N           sample from the N likeliest tokens; 0 from all (0)\n"
     "  --seed N            the same seed gives the same text (1)\n"
     "  --lora-from DIR     apply the LoRA adapter in this folder\n"
     "  --tokenizer DIR     take the tokenizer in this folder; bytes: none\n",
     false},
    {"inspect",
     "usage: snug inspect FILE|RUN\n"
     "\n"
     "Lists the contents of a run, a metrics.jsonl, a safetensors file or a data file.\n"
     "\n"
     "  snug inspect run\n"
     "  snug inspect run/model.safetensors\n",
     false},
    {"data",
     "usage: snug data NAME [FOLDER] [--from URL]\n"
     "       snug data tokenize FILES -o FOLDER --tokenizer T [--threads N]\n"
     "\n"
     "Downloads a data set from its publisher with the program curl and verifies it: a\n"
     "file gets its final name only if its md5 matches the published one. Interrupted\n"
     "downloads resume, and complete files are not downloaded again.\n"
     "\n"
     "tokenize writes the tokens of text files, and of all files in folders, as shards\n"
     "in llm.c's layout, with a fingerprint of the tokenizer: a model folder with\n"
     "another tokenizer refuses them. Each file is a document. The special token that\n"
     "ends a text follows it, if the tokenizer has one.\n"
     "\n"
     "  snug data fashion-mnist\n"
     "  snug data cifar-10 /data/cifar-10\n"
     "  snug data tokenize books -o tokens --tokenizer folder\n"
     "\n"
     "NAME    fashion-mnist (30 MB), cifar-10 (170 MB to download, 354 MB on disk)\n"
     "FOLDER  destination; default $SNUG_DATA/NAME, or the cache (~/.cache/snug/NAME),\n"
     "        where train finds the data set by its name\n"
     "\n"
     "  --from URL      download from another server with the same files; https, or\n"
     "                  plain http on this machine (http://127.0.0.1:8000)\n"
     "  --out FOLDER    for tokenize: where the shards go; also -o\n"
     "  --tokenizer T   for tokenize: as for snug tokenize\n"
     "  --threads N     for tokenize: number of CPU threads (default: all cores)\n",
     false},
    {"tokenize",
     "usage: snug tokenize TOKENIZER [-0] [--decode] [--threads N] < TEXT\n"
     "\n"
     "Prints the token ids of standard input: a line of ids for each line of text. The\n"
     "ids are those of the Python library tokenizers, without the special tokens that\n"
     "it adds around a text. Special tokens in the text, such as <|endoftext|>, are\n"
     "recognized. Any bytes may be in the text.\n"
     "\n"
     "  snug tokenize folder < lines.txt > ids.txt\n"
     "  snug tokenize folder -0 < book.txt | snug tokenize folder -0 --decode\n"
     "\n"
     "TOKENIZER  a tokenizer.json, or a folder with one or with the two files of GPT-2\n"
     "       (vocab.json or encoder.json, and merges.txt or vocab.bpe)\n"
     "\n"
     "  --null          texts end with a NUL byte, not with a newline; also -0\n"
     "  --decode        the other way: lines of ids to texts\n"
     "  --threads N     number of CPU threads (default: all cores)\n",
     false},
    {"bench",
     "usage: snug bench cpu|cuda [MODEL] [recipe] [--json]\n"
     "\n"
     "cpu measures the peak rates of this machine: multiply-adds in registers (FMA),\n"
     "tile matmuls on CPUs that have them (AMX), and memory bandwidth. Then it times\n"
     "the kernels of a training step of MODEL (gpt-nano) in isolation, and the whole\n"
     "step op by op on random data: time, share, rate, and percent of the limit.\n"
     "Without MODEL it also measures the op rates that plan and fit use for their time\n"
     "estimates, and saves them for this CPU and number of threads in\n"
     "~/.cache/snug/rates.json. If the machine was busy, it says so and saves nothing.\n"
     "The measurements need about 400 MB on top of the step, whatever --memory is.\n"
     "\n"
     "cuda measures the same on an NVIDIA GPU, with the GPU's own timers.\n"
     "\n"
     "  snug bench cpu\n"
     "  snug bench cpu gpt2 --batch 4 --seq 256 --threads 2\n"
     "\n"
     "  --json          print one JSON object\n",
     true},
    {"ops",
     "usage: snug ops\n"
     "\n"
     "Lists all ops of the program IR and what each has: plain C reference, fast CPU\n"
     "kernel, CUDA kernel, gradient rule.\n",
     false},
};

void help_usage(FILE *to)
{
    fputs("usage: snug COMMAND  one of: plan fit train eval generate inspect tokenize\n"
          "       data bench ops\n"
          "       snug help      describe them     snug plan gpt2    a first example\n",
          to);
}

static int no_memory(void)
{
    cli_note("%s", snug_status_text(SNUG_NO_MEMORY));
    return CLI_FAILED;
}

/* The list of presets, then the other ways to name a model. */
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
            "\nRecipe: flags, or key = value lines in a file (--recipe FILE). The second line\n"
            "of each flag lists its values, the default first.\n\n%s",
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
