# docker build -t transformer-lab . && docker run --rm -p 127.0.0.1:8888:8888 transformer-lab
FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends fonts-noto-cjk git make && rm -rf /var/lib/apt/lists/*
WORKDIR /lab
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY lab lab
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "torch==$(sed -n 's/^torch==//p' constraints.txt | cut -d+ -f1)" \
    && pip install --no-cache-dir -c constraints.txt -e ".[book]"
COPY . .
EXPOSE 8888
CMD ["jupyter", "lab", "--ip", "0.0.0.0", "--allow-root", "--no-browser", "notebooks"]
