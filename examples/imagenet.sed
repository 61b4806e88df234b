# https://github.com/pytorch/examples/blob/77f55b912142e11fcfdf5b530231fb9c52f181e8/imagenet/main.py
# Not with --dummy.
/^import torchvision.datasets/i\
from superdl import Recipe, SuperDataset, SuperSampler
s/train_dataset = datasets.ImageFolder($/train_dataset = SuperDataset(/
s/^ *traindir,$/            traindir, transform=/
s/val_dataset = datasets.ImageFolder($/val_dataset = SuperDataset(/
s/^ *valdir,$/            valdir, Recipe.image(resize=256, crop=224), padding="skip", transform=/
/transforms.Resize(256)/d
/transforms.CenterCrop(224)/d
/^    if args.distributed:$/{
N
/train_sampler = torch/!b
N
N
N
N
c\
    train_sampler = SuperSampler(train_dataset, batch_size=args.batch_size, shuffle=True)\
    val_sampler = SuperSampler(val_dataset, batch_size=args.batch_size, shuffle=False)
}
s/^        train_dataset, batch_size=.*/        train_dataset, batch_size=None,/
s/^        val_dataset, batch_size=.*/        val_dataset, batch_size=None,/
s/^        len(val_loader) + .*/        len(val_loader),/
/^    if args.distributed and (len(val_loader/,/^        run_validate(aux/d
